"""Verdicts on times: a bar of the same run, refuted and held by six readings or left open."""

from __future__ import annotations

from typing import Any
from unittest.mock import MagicMock

import pytest

from djinn_evaluation import timing
from djinn_evaluation.course import Course
from djinn_evaluation.link import Link
from djinn_evaluation.timing import checkpoint_cost, resume_latency
from djinn_evaluation.timing.resume_latency import Side

ALONE, STOPPED, MOVED = 500.0, 450.0, 430.0  # tokens a second
LINK = Link(copies={"in": [(1000, 1.0)]})


@pytest.fixture
def course() -> Any:
    found = MagicMock(spec=Course)
    found.undecided = []
    found.leave_open.side_effect = found.undecided.append
    return found


def turns(moved: float, count: int = 6) -> tuple[dict[str, list[float]], dict[str, list[int]]]:
    rates = dict(zip(checkpoint_cost.PARTS, ([ALONE] * count, [STOPPED] * count, [moved] * count), strict=True))
    return rates, {"with_stops": [2] * count, "with_write_through": [2] * count}


def test_what_a_move_may_cost_is_counted_in_stops_and_tokens_of_the_same_turn() -> None:
    rates, stops = turns(MOVED)
    alone, stopped, moved = (1000 * 90 / rate for rate in (ALONE, STOPPED, MOVED))
    stop, move = (stopped - alone) / 2, (moved - stopped) / 2
    expected = stop + 4 * 1000 / ALONE - move
    assert checkpoint_cost._room(90, rates, stops) == pytest.approx([expected] * 6)


@pytest.mark.parametrize(
    ("moved", "count", "failed", "left_open"),
    [(MOVED, 6, False, False), (100.0, 6, True, False), (MOVED, 5, False, True), (100.0, 5, False, True)],
)
def test_a_move_that_costs_more_fails(course: Any, moved: float, count: int, failed: bool, left_open: bool) -> None:
    found = timing.failures(course, "it is slow", checkpoint_cost._room(90, *turns(moved, count)))
    assert (bool(found), bool(course.undecided)) == (failed, left_open)


def test_turns_that_disagree_are_left_open(course: Any) -> None:
    rates, stops = turns(MOVED)
    rates["with_write_through"][3:] = [100.0] * 3
    assert timing.failures(course, "it is slow", checkpoint_cost._room(90, rates, stops)) == []
    assert "do not tell whether it is slow" in course.undecided[0]


def test_a_turn_without_a_stop_says_nothing() -> None:
    rates, stops = turns(MOVED)
    stops["with_stops"][0] = stops["with_write_through"][1] = 0
    assert len(checkpoint_cost._room(90, rates, stops)) == 4


@pytest.mark.parametrize(
    ("place", "taken", "failed", "left_open"),
    [
        ("resident", 19.0, False, False),
        ("resident", 21.0, True, False),
        ("host", 5039.0, False, False),
        ("host", 5041.0, True, False),
        ("disk", 5039.0, False, False),
        ("disk", 5041.0, False, True),
    ],
)
def test_a_resume_is_held_against_the_whole_pass(
    course: Any, place: str, taken: float, failed: bool, left_open: bool
) -> None:
    """Whole passes of 20 ms, and bytes whose plain copy takes five seconds."""
    side = Side(milliseconds=(taken,) * 6, moved=5000, whole=(20.0,) * 6)
    found = resume_latency._too_slow(course, 3, place, side, LINK)
    assert (bool(found), bool(course.undecided)) == (failed, left_open)
