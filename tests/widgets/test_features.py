"""The card of a feature's page: a token's colour and title have its own value, literally; the text has all numbers."""

from __future__ import annotations

import html
import re
from typing import Any

import pytest

from djinn_jupyter.api.tables import SHORT
from djinn_jupyter.errors import UsageError
from djinn_jupyter.methods.features.api.examples import FeatureExample, FeatureValues
from djinn_jupyter.methods.features.api.page import FeaturePage
from djinn_jupyter.methods.features.card import page_view
from djinn_jupyter.methods.features.request import ReadFeature, WrittenToken
from tests.magics.methods import feature_read
from tests.widgets.static import faults_in
from tests.widgets.test_text import HOSTILE

REQUEST = ReadFeature(session="feature", site="sae.4[17]")


def example(texts: tuple[str, ...] = (" a", " b", " c"), at: int = 1, **fields: Any) -> FeatureExample:
    given = {"prompt": 3, "position": 10 + at, "first": 10, "value": 4.0, "tokens": tuple(range(len(texts))),
             "texts": texts, "values": (0.0, 4.0, *[None] * (len(texts) - 2))} | fields  # fmt: skip
    return FeatureExample(**given)


def values(*examples: FeatureExample, **fields: Any) -> FeatureValues:
    given = {"folder": "/somewhere/acts", "digest": "d", "site": "resid_post.4", "prompts": 12, "positions": 2000,
             "active": 40, "mean": 1.5, "largest": 4.0, "edges": tuple(n / 5 for n in range(21)),
             "counts": (20, *[1] * 18, 2), "correlations": (0.5, None, *[0.25] * 8), "examples": examples}  # fmt: skip
    return FeatureValues(**{**given, **fields})


def page(over: FeatureValues | None = None, **fields: Any) -> FeaturePage:
    return FeaturePage(feature_read(**fields), REQUEST, over)


def chips(markup: str) -> list[tuple[str, str, str]]:
    """Return the classes, the style and the title of each token."""
    found = re.findall(r'<code(?: class="([^"]*)")?(?: style="([^"]*)")? title="([^"]*)"', markup)
    return [(classes, style, html.unescape(title)) for classes, style, title in found]


def test_the_tokens_around_an_example_have_its_values() -> None:
    view = page_view(page(values(example())))
    assert chips(view.html) == [
        ("", "", "position 10: 0"),
        ("dj-here", "background:#e06c28bf", "position 11: 4.00"),
        ("", "", "position 12"),
    ]
    assert faults_in(view.html) == []
    assert "/somewhere" not in view.html + view.plain


def test_all_numbers_that_matter_are_in_the_text_and_it_is_short() -> None:
    many = [example(tuple(f" word{n}" for n in range(19)), value=4.0 - n / 10, prompt=n) for n in range(10)]
    plain = page_view(page(values(*many, notes=("A note on them.",)))).plain
    assert len(plain) <= SHORT
    for said in (
        "active at 40 of 2,000 positions (2 %), at most 4",
        "40 of 2,000 positions (2.00 %); where it is, mean 1.50, largest 4.00",
        "12 prompts in acts, at resid_post.4",
        "promotes: ' Paris' +2.00",
        "suppresses: ' Oslo' -1.30",
        "the final norm's weight and W_U, without the norm's factor",
        "like it, by cosine: sae.4[20] 0.90 (r 0.50), sae.4[21] 0.85, sae.4[22] 0.80 (r 0.25)",
        "positions by value from 0 to 4.00: 20, 1, 1, 1",
        "A note on them.",
    ):
        assert said in plain
    assert "\u00ab word1\u00bb" in plain


def test_texts_are_shown_literally() -> None:
    written = tuple(WrittenToken(token=n, text=text, logit=1.0) for n, text in enumerate(HOSTILE))
    over = values(example(HOSTILE), folder="/x/<b>$a$")
    view = page_view(page(over, promoted=written, unwritten=""))
    assert faults_in(view.html) == []
    for tag in ("<b>", "<a href", "</script"):
        assert tag not in view.html
    for literal in ("$a$", "&lt;b&gt;"):
        assert literal in view.html
    assert "\u202e" not in view.html + view.plain
    assert len(view.plain) <= SHORT


def test_what_is_not_defined_is_one_sentence_and_what_never_was_active_too() -> None:
    reason = "It is written to z.4, which is not added to the residual."
    view = page_view(page(promoted=(), suppressed=(), unwritten=reason, writes=None))
    assert f"what it writes to the vocabulary: {reason}" in view.plain
    assert reason in view.html
    assert "nothing back" in view.plain
    assert "by way of the residual" not in view.plain + view.html
    dead = values(active=0, mean=0.0, largest=0.0, counts=(0,) * 20)
    view = page_view(page(dead))
    assert "at none of 2,000 positions" in view.plain
    assert "never active" in view.plain
    assert "never active" in view.html
    assert "where it is largest" not in view.html


def test_examples_by_value_are_folded_and_name_their_interval() -> None:
    low = example(value=0.1, interval=0, prompt=5)
    view = page_view(page(values(example(), low)))
    assert view.html.count("<details>") == 1
    assert "0 to 0.800: 57.5 % of where it is active" in view.html
    assert "where it is largest" in view.html
    assert "5, 11" not in view.plain


def test_its_figures_are_bars() -> None:
    chart = page_view(page(values(example()))).charted()
    assert [panel.title for panel in chart.panels] == [
        "values of sae.4[17] above zero",
        "what sae.4[17] adds to logits",
        "features like sae.4[17]",
    ]
    assert list(chart.panels[0].series["positions"]) == [20, *[1] * 18, 2]  # type: ignore[union-attr]
    assert [panel.title for panel in page_view(page()).charted().panels] == [one.title for one in chart.panels[1:]]
    with pytest.raises(UsageError, match="has no figure"):
        page_view(page(promoted=(), suppressed=(), like=())).charted()
