"""Intervals of a median, and what is learned of how long a rest lasts."""

from __future__ import annotations

import random
import statistics

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from djinn_evaluation.agents.replay.choosing import EDGES, HORIZON, LearnedTimes, ReuseModel
from djinn_evaluation.intervals import MedianInterval, ratios


@pytest.mark.parametrize(
    ("count", "low", "high", "confidence"),
    [(1, 1, 1, 0.0), (5, 1, 5, 0.9375), (6, 1, 6, 0.96875), (9, 2, 8, 0.9609375), (20, 6, 15, 0.9586)],
)
def test_the_interval_of_so_many_readings(count: int, low: int, high: int, confidence: float) -> None:
    """The ranks are those of the table of the sign test."""
    readings = [float(n) for n in range(1, count + 1)]
    random.Random(count).shuffle(readings)
    found = MedianInterval.of(readings)
    assert (found.low, found.high, found.count) == (low, high, count)
    assert found.median == statistics.median(readings)
    assert found.confidence == pytest.approx(confidence, abs=1e-4)


def test_the_interval_has_the_true_median_as_often_as_it_says() -> None:
    draw = random.Random(7)
    found = [MedianInterval.of([draw.expovariate(1.0) for _ in range(9)]) for _ in range(2000)]
    inside = sum(one.low <= 0.6931 <= one.high for one in found) / len(found)
    assert inside == pytest.approx(found[0].confidence, abs=0.02)


@pytest.mark.parametrize(
    ("readings", "verdict"),
    [
        ([0.91, 0.92, 0.93, 0.94, 0.95, 0.96], "holds"),
        ([0.89, 0.92, 0.93, 0.94, 0.95, 0.96], "undecided"),
        ([0.81, 0.82, 0.83, 0.84, 0.85, 0.86], "refuted"),
        ([0.9] * 6, "holds"),
        ([0.95], "undecided"),
        ([0.1] * 5, "undecided"),
    ],
)
def test_the_verdict_on_a_bar(readings: list[float], verdict: str) -> None:
    assert MedianInterval.of(readings).at_least(0.9) == verdict


def test_ratios_are_paired() -> None:
    assert ratios([2.0, 9.0], [1.0, 3.0]) == [2.0, 3.0]
    with pytest.raises(ValueError, match="zip"):
        ratios([1.0], [1.0, 2.0])


QUICK = settings(max_examples=40, deadline=None)
LENGTHS = st.floats(0.0, 2 * HORIZON)
HISTORIES = st.lists(st.tuples(LENGTHS, LENGTHS, st.booleans()), max_size=20)


def after(history: list[tuple[float, float, bool]]) -> ReuseModel:
    pauses = ReuseModel()
    for one, other, returned in history:
        pauses.learn(min(one, other), max(one, other), returned=returned)
    return pauses


@QUICK
@given(HISTORIES, LENGTHS)
def test_what_remains_is_between_nothing_and_the_horizon(history: list[tuple[float, float, bool]], t: float) -> None:
    assert 0.0 <= after(history).remaining(t) <= HORIZON


@QUICK
@given(HISTORIES, LENGTHS, LENGTHS)
def test_time_passes_no_faster_than_the_expectation_says(
    history: list[tuple[float, float, bool]], one: float, other: float
) -> None:
    """From t to u a pause either ends or has lasted u - t: the rest at t is at most that plus the rest at u."""
    pauses, (t, u) = after(history), sorted((min(one, HORIZON), min(other, HORIZON)))
    assert pauses.remaining(t) <= (u - t) + pauses.remaining(u) + 1e-6 * HORIZON


def test_before_anything_was_seen_the_longer_it_lasted_the_longer_it_lasts() -> None:
    remaining = [ReuseModel().remaining(t) for t in EDGES[4:-6]]
    assert remaining == sorted(remaining)


@pytest.mark.parametrize("mean", [2.0, 30.0, 900.0])
def test_pauses_without_a_memory_have_the_same_left_at_any_time(mean: float) -> None:
    rand, pauses = random.Random(0), ReuseModel()
    for _ in range(3000):
        pauses.learn(0.0, rand.expovariate(1.0 / mean), returned=True)
    for lasted in (0.0, mean / 2, mean):
        assert pauses.remaining(lasted) == pytest.approx(mean, rel=0.5)


def test_a_mixture_of_short_and_long_is_told_apart_by_its_age() -> None:
    rand, pauses = random.Random(0), ReuseModel()
    for _ in range(2000):
        pauses.learn(0.0, rand.choice((1.0, 1.0, 1.0, 4000.0)) * rand.uniform(0.8, 1.2), returned=True)
    assert pauses.remaining(0.0) < pauses.remaining(60.0)


def test_a_pause_that_has_not_ended_teaches_too() -> None:
    seen, unseen = ReuseModel(), ReuseModel()
    for pauses in (seen, unseen):
        for _ in range(20):
            pauses.learn(0.0, 10.0, returned=True)
    for _ in range(20):
        seen.learn(0.0, 3000.0, returned=False)
    assert seen.remaining(0.0) > unseen.remaining(0.0)


def test_what_changes_is_learned_anew() -> None:
    pauses, rand = ReuseModel(), random.Random(0)
    for mean in (5.0, 500.0):
        for _ in range(3000):
            pauses.learn(0.0, rand.expovariate(1 / mean), returned=True)
    assert pauses.remaining(0.0) == pytest.approx(500.0, rel=0.3)


def test_an_impossible_part_of_a_pause_is_refused_and_changes_nothing() -> None:
    pauses = ReuseModel()
    before = pauses.remaining(1.0)
    with pytest.raises(ValueError, match="ends after it begins"):
        pauses.learn(5.0, 1.0, returned=True)
    assert pauses.remaining(1.0) == before


@QUICK
@given(st.lists(st.floats(0.01, 1e4), min_size=1, max_size=8))
def test_a_rest_is_learned_once_however_often_one_looked(waits: list[float]) -> None:
    looked, unseen, now = LearnedTimes(), LearnedTimes(), 0.0
    for wait in waits:
        for rests in (looked, unseen):
            rests.rests("a", now)
        now += wait
        looked.catch_up(now)
    for rests in (looked, unseen):
        rests.acts("a", now)
        rests.rests("b", now)
    assert looked.remaining("b", now + 3.0) == pytest.approx(unseen.remaining("b", now + 3.0))
