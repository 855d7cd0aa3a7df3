"""The interval of a median: its known coverage, and the verdicts that it allows."""

from __future__ import annotations

import random
import statistics

import pytest

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
