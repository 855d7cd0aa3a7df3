"""The card of a score: its largest parts at both positions, what the others sum to, and texts as they are."""

from __future__ import annotations

import html

import numpy as np
import pytest

from djinn_jupyter.errors import UsageError
from djinn_jupyter.methods.why.api import ScoreParts, part_name
from djinn_jupyter.methods.why.card import DRAWN, SHOWN, SHOWN_PLAIN, score_view
from djinn_jupyter.methods.why.request import ExplainScore
from djinn_jupyter.widgets.panels import Bars
from tests.magics.methods import explained
from tests.widgets import samples
from tests.widgets.static import faults_in

HOSTILE = ("$a$", "<b>", "</script>", "\u202eabc", "\U0001f600", "x\ny", " x" * 5000, '"')


def parts(texts: tuple[str, ...] = samples.PROMPT, count: int = 30) -> ScoreParts:
    read = explained(texts, count)
    return ScoreParts(read, ExplainScore(session="s", line=read.tokens, layer=5, head=1, query=read.query, key=0))


def test_the_largest_parts_of_both_sides_are_shown_and_the_others_summed() -> None:
    read = parts()
    view = score_view(read, "paris")
    assert view.html.count("z.0[0]") == 2
    assert view.html.count(f"{30 - SHOWN} others") == 2
    others = sum(one.value for one in read.by_key.parts[SHOWN_PLAIN:])
    assert f"{30 - SHOWN_PLAIN} others  {others:+.2f}" in view.plain
    assert [line for line in view.plain.splitlines() if line.startswith("attention")] == ["attention: 25 %"]
    assert "others" not in score_view(parts(count=SHOWN_PLAIN)).plain


def test_parts_are_tabled_ranked_and_drawn_by_their_names() -> None:
    read = parts()
    table = read.columns()
    assert table["part"][:2] == ["z.0[0]", "z.0[1]"]
    for at in ("key", "query"):
        values = [value for side, value in zip(table["at"], table["value"], strict=True) if side == at]
        assert sum(values) == pytest.approx(read.score)
    assert read.top(2) == [("key", "z.0[0]", 3.0), ("key", "z.0[1]", -1.5)]
    assert read.top(1, at="query") == [("query", "z.0[0]", 1.5)]
    with pytest.raises(UsageError, match='"key" and at its "query"'):
        read.top(1, at="value")
    key, query = score_view(read).chart().panels
    assert isinstance(key, Bars)
    assert isinstance(query, Bars)
    assert list(key.names) == [name for _, name, _ in read.top(DRAWN, "key")]
    assert np.array_equal(query.series["part"], [value for *_, value in read.top(DRAWN, "query")])


def test_parts_are_named_as_sites_are() -> None:
    places = (("z", 5, 3), ("mlp_out", 2, None), ("embed", None, None), ("sae", 4, 17), ("sae error", 4, None))
    assert [part_name(*one) for one in places] == ["z.5[3]", "mlp_out.2", "embed", "sae.4[17]", "sae.4 error"]


def test_any_text_of_a_token_is_shown_as_it_is() -> None:
    view = score_view(parts(HOSTILE))
    assert not faults_in(view.html)
    assert len(view.plain) <= 2000
    for text in ("$a$", "<b>", "</script>"):
        assert html.escape(text) in view.html
