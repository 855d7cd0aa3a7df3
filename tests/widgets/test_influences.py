"""A stop's influences are on its card, on the card of its effect, in the text form and in Python's repr."""

from __future__ import annotations

import msgspec

from djinn_jupyter.api.influences import influence_lines
from djinn_jupyter.widgets import views
from djinn_jupyter.wire.readings import Change, Influences, Override
from tests.widgets import samples
from tests.widgets.cards import CARDS_OF_INFLUENCES as CARDS

LINES = [
    "in force: rule 1: add [256] x 4 at resid_post.2 (relative size 0.312)",
    "in force: rule 2: scale 2 at resid_post.6 (not met yet: it lies ahead of the stop)",
    "put in place: zero at z.1[3], position 4 (relative size 1.00)",
    "before this pass: positions 0-3: rule 1: add [256] x 4 at resid_post.2",
]


def test_all_influences_are_told_once() -> None:
    assert influence_lines(samples.influences()) == LINES


def test_stop_and_effect_tell_them_in_text_and_markup() -> None:
    for card in CARDS:
        for line in LINES:
            assert line in card.plain
            assert line.partition(": ")[2].partition(" (")[0] in card.html


def test_the_adapter_that_a_stop_is_computed_with_is_told_first() -> None:
    told = msgspec.structs.replace(samples.influences(), adapter="sql")
    assert influence_lines(told) == ["computed with: the adapter sql", *LINES]
    card = views.stop_view(samples.paused(influences=told))
    assert "computed with: the adapter sql" in card.plain
    assert "the adapter sql" in card.html


def test_edits_of_the_stop_have_their_sizes() -> None:
    what = "zero at z.5[6], position 4"
    told = Influences(overrides=(Override(site="z.5", changes=(Change(what=what, relative_size=1.0),)),))
    assert influence_lines(told, (what,)) == [f"edited: {what} (relative size 1.00)"]


def test_a_rule_that_has_ended_and_a_value_without_a_note_are_told() -> None:
    ended = Change(what="scale 2 at resid_post.2", rule=3, relative_size=1.0)
    told = Influences(overrides=(Override(site="z.1", changes=()), Override(site="resid_post.2", changes=(ended,))))
    assert influence_lines(told) == [
        "put in place: z.1: a value put in place; what made it was not noted",
        "put in place: rule 3, since ended: scale 2 at resid_post.2 (relative size 1.00)",
    ]


def test_a_stop_that_is_past_says_so_and_nothing_else_changes() -> None:
    view = views.stop_view(samples.paused())
    assert view.since is not None
    past = view.since("moved on since")
    assert "moved on since" in past.html
    assert "dj-dot dj-paused" not in past.html
    assert past.plain == f"{view.plain}\n(moved on since)"
