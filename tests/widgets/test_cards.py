"""Cards are small, static and well formed; what influences a stop stands on them."""

from __future__ import annotations

import re
from itertools import accumulate
from pathlib import Path

import msgspec
import pytest

from djinn_jupyter.api.influences import influence_lines
from djinn_jupyter.widgets import views
from djinn_jupyter.widgets.html import dotted
from djinn_jupyter.widgets.view import PLOTLY, View
from djinn_jupyter.wire.readings import Change, Influences, Override
from tests.widgets import samples
from tests.widgets.cards import CARDS_OF_INFLUENCES as SHOWN
from tests.widgets.cards import all_cards
from tests.widgets.static import faults_in

CARDS = all_cards()
QUICKSTART = Path(__file__).parents[2] / "notebooks" / "01_quickstart.ipynb"


@pytest.fixture(params=list(CARDS))
def card(request: pytest.FixtureRequest) -> View:
    return CARDS[request.param]


def test_markup_is_well_formed_and_static(card: View) -> None:
    assert faults_in(card.html) == []


def test_a_card_is_small_and_carries_its_own_rules_alone(card: View) -> None:
    sheet = re.search(r"<style>(.*?)</style>", card.html, re.DOTALL)
    frame = ".djinn.djinn.djinn{"
    assert sheet[1].startswith(frame)
    depths = list(accumulate({"{": 1, "}": -1}.get(sign, 0) for sign in sheet[1]))
    assert depths.index(0, len(frame)) == len(sheet[1]) - 1, "a rule outside of the card's"
    markup = card.html.replace(sheet[0], "")
    assert len(sheet[0]) <= 1_500, "all rules together are 3,500"
    named = set(re.findall(r"\.(dj-[a-z]+)", sheet[1]))
    assert named <= set(re.findall(r"\bdj-[a-z]+", markup))
    assert len(card.html) < 40_000
    assert len(card.plain) < 4_000


def test_rules_are_at_most_a_tenth_of_the_saved_quickstart() -> None:
    saved = QUICKSTART.read_text(encoding="utf-8")
    rules = re.findall(r"<style>.*?</style>", saved)
    assert len(rules) > 20
    assert 10 * sum(map(len, rules)) <= len(saved)


def test_no_card_has_loose_words_clocks_or_more_than_its_bundle() -> None:
    # A page that does not trust the notebook takes SVG away and leaves the words that were in it.
    for name, one in CARDS.items():
        assert "<text" not in one.html, name
    for name in ("stop", "stop under a rule", "result", "running", "broken off", "edit"):
        assert "session paris" in CARDS[name].html, name
        assert "session paris" in CARDS[name].plain, name
    for card in CARDS.values():
        text = card.plain + re.sub(r"data:image/png;base64,[^\"]*", "", card.html)
        assert not re.search(r"0x[0-9a-f]{6}|4242|idle_seconds|12\.5", text)
    for card in CARDS.values():
        ours = (set() if card.drawn is None else {card.drawn[0]}) | ({PLOTLY} if card.is_chart else set())
        assert set(card._repr_mimebundle_()) == {"text/plain", "text/html"} | ours
        assert repr(card) == card.plain
    assert "<b>" not in CARDS["stop"].html
    assert "&lt;b&gt;" in CARDS["stop"].html
    assert "<b>" not in CARDS["breakpoints"].html


def test_the_same_values_give_the_same_text_and_markup() -> None:
    again = all_cards()
    assert {name: (card.plain, card.html) for name, card in again.items()} == {
        name: (card.plain, card.html) for name, card in CARDS.items()
    }


LINES = [
    "in force: rule 1: add [256] x 4 at resid_post.2 (relative size 0.312)",
    "in force: rule 2: scale 2 at resid_post.6 (not met yet: it lies ahead of the stop)",
    "put in place: zero at z.1[3], position 4 (relative size 1.00)",
    "before this pass: positions 0-3: rule 1: add [256] x 4 at resid_post.2",
]


def test_all_influences_are_told_once() -> None:
    assert influence_lines(samples.influences()) == LINES
    for card in SHOWN:
        for line in LINES:
            assert line in card.plain
            assert line.partition(": ")[2].partition(" (")[0] in card.html
    told = msgspec.structs.replace(samples.influences(), adapter="sql")
    assert influence_lines(told) == ["computed with: the adapter sql", *LINES]
    card = views.stop_view(samples.paused(influences=told))
    assert "computed with: the adapter sql" in card.plain
    assert "the adapter sql" in card.html
    what = "zero at z.5[6], position 4"
    told = Influences(overrides=(Override(site="z.5", changes=(Change(what=what, relative_size=1.0),)),))
    assert influence_lines(told, (what,)) == [f"edited: {what} (relative size 1.00)"]
    ended = Change(what="scale 2 at resid_post.2", rule=3, relative_size=1.0)
    told = Influences(overrides=(Override(site="z.1", changes=()), Override(site="resid_post.2", changes=(ended,))))
    assert influence_lines(told) == [
        "put in place: z.1: a value put in place; what made it was not noted",
        "put in place: rule 3, since ended: scale 2 at resid_post.2 (relative size 1.00)",
    ]


def bare(html: str) -> str:
    """The markup without its style."""
    return html.partition("</style>")[2]


def test_a_stop_that_is_past_says_so_and_nothing_else_changes() -> None:
    view = views.stop_view(samples.paused())
    assert view.since is not None
    past = view.since("past: %djinn_where")
    said = ' \u00b7 <span title="past: %djinn_where">past</span>'
    assert said in past.html
    assert bare(past.html).replace(said, "") == bare(view.html).replace(dotted("paused"), dotted("past"))
    assert past.plain == f"{view.plain}\n(past: %djinn_where)"
    stop = CARDS["stop"]
    assert stop.since is not None
    past = stop.since("edited since: %djinn_where").html
    assert past.count("<style>") == 1
    assert 'title="edited since: %djinn_where">edited since<' in past
