"""The card of a text: a token's colour and title have its own numbers, literally; a long text is cut in the middle."""

from __future__ import annotations

import html
import re

import msgspec
import numpy as np
import pytest
import torch

from djinn_jupyter.engine.system.arrays import to_array
from djinn_jupyter.errors import UsageError
from djinn_jupyter.methods.text.api import TextLens, TokenMeasures
from djinn_jupyter.methods.text.card import CELLS, SHOWN, lens_view, text_view
from djinn_jupyter.methods.text.request import ReadText, ReadTextLens
from djinn_jupyter.widgets.pictures import VIRIDIS
from tests.magics.methods import lens_read, text_read
from tests.widgets import samples
from tests.widgets.static import faults_in

HOSTILE = (
    "$a$",
    "<b>",
    "</script>",
    "\u202eabc",
    "\U0001f600",
    "x\ny",
    " x" * 5000,
    '"',
    "<a href=javascript:alert(1)>",
)
METRIC = "logit(' Rome') - logit(' Paris')"


def measures(texts: tuple[str, ...] = samples.PROMPT, generated: int = 1, by: str = "probability") -> TokenMeasures:
    values = np.linspace(-2, 4, len(texts))
    metrics, sites = to_array(torch.tensor(values)), to_array(torch.tensor(values, dtype=torch.float32))
    read = text_read(texts, generated, metrics=metrics, site_values=sites, of="value")
    request = ReadText(session="s", line=read.tokens, metric=METRIC, site="sae.4[3]")
    return TokenMeasures(read, request, by=by)


def chips(markup: str) -> list[tuple[str, str]]:
    """Return the style and the title of each token."""
    found = re.findall(r'<code(?: class="dj-made")?(?: style="([^"]*)")? title="([^"]*)"', markup)
    return [(style, html.unescape(title)) for style, title in found]


def test_a_token_has_the_colour_and_the_numbers_of_its_measure() -> None:
    read = measures()
    view = text_view(read, "paris")
    first, *others = chips(view.html)
    assert first == ("", "position 0\nsae.4[3] -2.00")
    assert len(others) == 4
    style, title = others[0]
    assert f"probability {np.exp(-0.1) * 100:.0f} %" in title
    assert title.splitlines()[-6:][0] == "predicted here:"
    assert [line for line in title.splitlines() if "entropy" in line] == ["entropy 0 nats"]
    assert style == "background:#bbde2f;color:#000"  # 0.90 between the last two colours of viridis
    low = others[-1]
    assert low[0] == f"background:#{''.join(f'{one:02x}' for one in VIRIDIS[0])};color:#fff"
    assert view.html.count("dj-made") >= 1
    assert view.plain.splitlines()[0] == (
        "Text of 5 tokens, 1 of them generated, loss 3.5500 a token; coloured by probability"
    )
    assert "' is'" in view.plain.splitlines()[3]
    assert view.plain.splitlines()[-1].startswith("5         next")


def test_signed_measures_are_orange_above_zero_and_blue_below() -> None:
    view = text_view(measures(by="sae.4[3]"))
    styles = [style for style, _ in chips(view.html)]
    assert [("#e06c28" in style, "#2e7ad6" in style) for style in styles] == [
        (False, True), (False, True), (True, False), (True, False), (True, False)
    ]  # fmt: skip
    assert "-3.9" in view.html
    assert "3.9" in view.html
    shifted = text_view(measures(by=METRIC))
    assert chips(shifted.html)[0][0] == ""  # nothing is before the first token
    legend = shifted.html.partition("linear-gradient(90deg,#2e7ad6,#0000,#e06c28)")
    assert "&lt;" not in legend[0][-60:] + legend[2][:100]


def test_hostile_tokens_stand_literally_and_are_bounded() -> None:
    view = text_view(measures(HOSTILE, generated=0))
    assert faults_in(view.html) == []
    for tag in ("<b>", "</script>", "<a href"):
        assert tag not in re.sub(r"<style>.*?</style>", "", view.html, flags=re.DOTALL)
    assert "\u202e" not in view.html
    assert "x\u21b5y" in view.html
    assert "</code><br>" in view.html
    assert len(view.html) < 20_000
    assert len(view.plain) < 2_000


def test_a_long_text_says_what_is_left_out() -> None:
    view = text_view(measures(tuple(f" w{n}" for n in range(3000)), generated=2500))
    said = f"the first {SHOWN // 2} and the last {SHOWN // 2} of 3000 tokens"
    assert said in view.plain
    assert said in view.html
    assert len(chips(view.html)) == SHOWN
    assert "\u2026 2,488 tokens \u2026" in view.html
    assert len(view.plain) < 2_000
    assert len(view.html) < 350_000


def test_tokens_name_the_breakpoint_of_a_click_where_an_engine_was_read() -> None:
    read = measures()
    assert "data-djinn" not in text_view(read).html
    placed = msgspec.structs.replace(read, engine=("e1", 'work/a "b".ipynb', "sae.4[3]"))
    markup = text_view(placed).html
    assert 'data-djinn-engine="e1" data-djinn-session="work/a &quot;b&quot;.ipynb" data-djinn-site="sae.4[3]"' in markup
    assert re.findall(r'data-djinn-at="(\d+)"', markup) == list("01234")
    assert faults_in(markup) == []


def test_measures_are_chosen_by_name() -> None:
    read = measures()
    assert [read.recipe[name] for name in ("metric", "site", "top")] == [METRIC, "sae.4[3]", 5]
    assert read.measures[:4] == ("probability", "entropy", METRIC, "sae.4[3]")
    assert read.coloured("entropy").top(1) == [(4, " is", pytest.approx(2.25))]
    assert read.top(2) == [(4, " is", pytest.approx(np.exp(-7))), (3, " France", pytest.approx(np.exp(-4.7)))]
    assert read.top(1, "sae.4[3]") == [(4, " is", 4.0)]
    assert read.predicted(0) == ()
    assert read.predicted(1) == read.reply.rows[0].top
    table = read.columns()
    assert table["token"][-1] is None
    assert table["generated"][-2:] == [True, True]
    assert table["top 1 text"][:2] == [None, read.reply.rows[0].top[0].text]
    assert len({len(column) for column in table.values()}) == 1
    with pytest.raises(UsageError, match=r"measured by probability, entropy, .*; 'norm' is not there"):
        read.coloured("norm")


def lens(layers: int, texts: tuple[str, ...] = samples.PROMPT, chosen: tuple[int, ...] = ()) -> TextLens:
    sites = tuple(f"resid_post.{layer}" for layer in range(layers))
    read = lens_read(sites, texts, 3, chosen)
    return TextLens(read, ReadTextLens(session="s", line=read.tokens, sites=sites, top=3, tokens=chosen))


def test_the_lens_of_a_text_has_a_picture_of_all_and_the_top_tokens_of_its_end() -> None:
    view = lens_view(lens(4, chosen=(100, 101)), "paris")
    assert faults_in(view.html) == []
    assert 'alt="probability of the own next token, 4 sites by 5 positions"' in view.html
    assert view.html.count("dj-tint") >= 4 * 5
    assert view.html.index("resid_post.0") < view.html.index("resid_post.3")
    lines = view.plain.splitlines()
    assert lines[0] == "Lens of 4 sites, resid_post.0 to resid_post.3, over 5 tokens"
    assert lines[1].endswith("resid_post.0 10 %, resid_post.1 33 %, resid_post.2 57 %, resid_post.3 80 %")
    assert "' t100'" in view.plain
    assert "25 %" in view.plain


def test_the_lens_of_a_long_text_is_bounded() -> None:
    view = lens_view(lens(48, tuple(f" word{n}" for n in range(2000))))
    assert view.html.count("<td") < 2 * CELLS
    assert len(view.html) < 200_000
    assert len(view.plain) < 2_500
    assert lens_view(lens(2, HOSTILE)).html.count("</script>") == 0
    assert "the text has one token" in lens_view(lens(2, (" one",))).plain


def test_the_table_of_a_lens_has_each_measure() -> None:
    read = lens(2, chosen=(100,))
    assert read.measures == ("next", "entropy", "top 1", "top 2", "top 3", "' t100'")
    assert read.columns()["site"] == ["resid_post.0"] * 5 + ["resid_post.1"] * 5
    assert read.top(1) == [("resid_post.1", 0, read.columns()["top 1 text"][5], pytest.approx(0.9))]
    assert [one.probability for one in read.predicted(1, 0)] == pytest.approx([0.9, 0.45, 0.3])
    assert np.isnan(read.of("next")[:, -1]).all()
    with pytest.raises(UsageError, match="The lens has next, entropy"):
        read.of("norm")


def test_requested_tokens_of_one_text_are_told_apart_by_their_ids() -> None:
    read = lens(2, chosen=(201, 202, 203))
    same = tuple((token, "\ufffd" if token in (201, 203) else text) for token, text in read.reply.spelled)
    reply = msgspec.structs.replace(
        read.reply, spelled=same, chosen=to_array(torch.arange(2 * 5 * 3, dtype=torch.float32).reshape(2, 5, 3))
    )
    found = TextLens(reply, read.request)
    assert found.measures[-3:] == ("'\ufffd' 201", "' t202'", "'\ufffd' 203")
    assert found.of("'\ufffd' 203")[0].tolist() == [2, 5, 8, 11, 14]
    assert found.columns()["'\ufffd' 201"][:2] == [0, 3]
