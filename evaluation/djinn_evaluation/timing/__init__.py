"""The experiments of resume-latency and checkpoint-cost, and verdicts by bars that the same run measured."""

from __future__ import annotations

from collections.abc import Sequence

from djinn_evaluation.course import Course
from djinn_evaluation.intervals import MedianInterval


def failures(course: Course, what: str, room: Sequence[float]) -> list[str]:
    """Return `what` as a failure where `room`, milliseconds below the bar, is less than none; undecided if unclear."""
    if not room:
        return []
    found = MedianInterval.of(room)
    verdict = found.at_least(0)
    if verdict == "undecided":
        course.leave_open(f"{found.count} readings do not tell whether {what}; ask for more with repeat, six at least.")
    too_much = f"{what[:1].upper()}{what[1:]}: by {-found.median:.4g} ms."
    return [too_much] if verdict == "refuted" else []
