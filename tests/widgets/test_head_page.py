"""The card of a head's page: scores with ranks, examples token by token, pairs of tokens, and texts as they are."""

from __future__ import annotations

import html
import re

import msgspec
import pytest

from djinn_jupyter.errors import UsageError
from djinn_jupyter.methods.heads.api import HeadPage, HeadScores
from djinn_jupyter.methods.heads.card import page_view
from djinn_jupyter.methods.heads.request import HeadRead, ReadHead
from djinn_jupyter.widgets.panels import Bars
from djinn_jupyter.widgets.tokens import share_style
from tests.magics.methods import head_read, heads_read
from tests.widgets import samples
from tests.widgets.static import faults_in

HOSTILE = ("$a$", "<b>", "</script>", "\u202eabc", "\U0001f600", "x\ny", " x" * 5000, '"')


def page_of(read: HeadRead) -> HeadPage:
    scores = HeadScores(heads_read(patterns=False), "over 8 lines")
    return HeadPage(read, scores, ReadHead(session="s", layer=read.layer, head=read.head, lines=read.lines))


def test_scores_have_their_ranks_among_all_heads() -> None:
    page = page_of(head_read(layer=1, head=1))
    scores = page.scores.previous
    own = float(scores[1, 1])
    assert page.ranks["previous"] == (own, 1 + int((scores > own).sum()), 6)
    plain = page_view(page).plain
    assert f"previous token: {own:.2f}, rank {1 + int((scores > own).sum())} of 6" in plain
    assert page_of(head_read(layer=1, head=2)).ranks["duplicate"] is None
    assert "duplicate token: no such position" in page_view(page_of(head_read())).plain


def test_an_example_colours_its_tokens_by_their_weights() -> None:
    page = page_of(head_read())
    markup = page_view(page).html
    chips = re.findall(r'<code( class="dj-here")? style="([^"]*)" title="([^"]*)"', markup)
    weights = page.examples[0].weights
    assert [style for _, style, _ in chips] == [share_style(weight) for weight in weights]
    assert [bool(here) for here, _, _ in chips] == [*[False] * (len(weights) - 1), True]
    assert chips[-2][2] == f"prompt 0, position {len(weights) - 2}: 75 %"


def test_a_key_beyond_the_window_stands_before_it() -> None:
    read = head_read()
    [one] = read.examples
    far = msgspec.structs.replace(one, key=1, first=3, weights=one.weights[3:])
    markup = page_view(page_of(msgspec.structs.replace(read, examples=(far,)))).html
    chips = re.findall(r'title="prompt 0, position (\d+)', markup)
    assert chips == ["1", "3", "4"]
    assert markup.index("position 1") < markup.index("\u2026") < markup.index("position 3")


def test_pairs_are_tabled_ranked_and_drawn() -> None:
    page = page_of(head_read())
    assert page.top(1) == [(samples.PROMPT[1], samples.PROMPT[0], 2.0)]
    assert page.top(1, "mean") == [(samples.PROMPT[1], samples.PROMPT[0], 1.0)]
    assert page.top(1, "circuit") == [(samples.PROMPT[1], samples.PROMPT[0], 3.0)]
    table = page.columns()
    assert table["count"][-1] is None
    assert page.values.tolist() == table["value"]
    with pytest.raises(UsageError, match="summed, mean, circuit; 'most' is none"):
        page.top(1, "most")
    panels = page_view(page).chart().panels
    assert [type(one) for one in panels] == [Bars] * 3
    assert "(2 times)" in page_view(page).plain


def test_what_is_not_there_is_told() -> None:
    read = msgspec.structs.replace(head_read(lines=0), circuit=None, unread="no V here")
    view = page_view(page_of(read))
    assert "No OV circuit: no V here" in view.plain
    assert "Give prompts to see what it attends to" in view.plain
    with pytest.raises(UsageError, match="no pairs of tokens to draw"):
        view.chart()


def test_any_text_of_a_token_is_shown_as_it_is() -> None:
    view = page_view(page_of(head_read(HOSTILE)))
    assert not faults_in(view.html)
    assert len(view.plain) <= 2000
    for text in ("$a$", "<b>", "</script>"):
        assert html.escape(text) in view.html
