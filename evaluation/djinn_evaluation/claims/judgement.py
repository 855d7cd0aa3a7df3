"""The verdict on one claim, and the rules by which readings become one. Knows no claim and no file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

from djinn_evaluation.intervals import MedianInterval, Verdict

REPETITIONS: Final = 2  # of what is right or wrong; an interval of times takes six
AT_THIS_SIZE: Final = "holds at this size"
VERDICTS: Final = ("holds", AT_THIS_SIZE, "refuted", "undecided")
ONE: Final = "one repetition decides nothing"
INSIDE: Final = "the interval has the bar inside"
WAITED: Final = "waiting for a core could have turned the verdict"
FEW: Final = "fewer than six repetitions have no interval of 95 %"


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """`value` is the figure that stands in the place of the original's, with the interval of its median where it has
    one; `reason` says why a claim is undecided, what refutes it, or which numbers of the sentence are larger."""

    verdict: Verdict | Literal["holds at this size"]
    value: Any
    interval: MedianInterval | None = None
    repetitions: int
    reason: str = ""

    def told_as(self, value: Any) -> Judgement:
        return replace(self, value=value)


UNREAD: Final = Judgement(verdict="undecided", value=None, repetitions=0, reason="there is no reading")


def every(held: Sequence[bool], otherwise: str) -> Judgement:
    """Judge what is right or wrong each time; `otherwise` is the reason where it was wrong once. One repetition decides
    neither way."""
    share, count = sum(held) / len(held) if held else None, len(held)
    if count < REPETITIONS:
        return Judgement(verdict="undecided", value=share, repetitions=count, reason=ONE)
    if not all(held):
        return Judgement(verdict="refuted", value=share, repetitions=count, reason=otherwise)
    return Judgement(verdict="holds", value=share, repetitions=count)


def at_most(readings: Sequence[float], bar: float, of: str) -> Judgement:
    """Judge by the interval of the median whether it is at most `bar`. `of` names the readings in the reason."""
    if not readings:
        return UNREAD
    turned = MedianInterval.of([-reading for reading in readings]).at_least(-bar)
    return _judged(MedianInterval.of(readings), turned, f"the median of {of} is", f"not at most {bar:g}")


def at_least(readings: Sequence[float], bar: float, of: str) -> Judgement:
    """Judge by the interval of the median whether it is at least `bar`. `of` names the readings in the reason."""
    if not readings:
        return UNREAD
    found = MedianInterval.of(readings)
    return _judged(found, found.at_least(bar), f"the median of {of} is", f"not at least {bar:g}")


def arithmetic(holds: bool, value: Any, otherwise: str) -> Judgement:
    """Judge what is computed and not measured; a repetition would give the same."""
    reason = "by arithmetic" if holds else f"by arithmetic: {otherwise}"
    return Judgement(verdict="holds" if holds else "refuted", value=value, repetitions=0, reason=reason)


def together(first: Judgement, *others: Judgement) -> Judgement:
    """Return the worst of several judgements, with the value and interval of the first."""
    for verdict in ("refuted", "undecided"):
        for one in (first, *others):
            if one.verdict == verdict:
                return replace(first, verdict=one.verdict, reason=one.reason)
    return first


def read_interval(fields: Mapping[str, Any], bar: float, of: str) -> Judgement:
    """Judge an interval that a result file has whether its median is at least `bar`; what the file leaves open, for
    waiting for a core could have turned it, stays so."""
    names = ("median", "low", "high", "count", "confidence")
    found = MedianInterval(**{name: fields[name] for name in names})
    judged = _judged(found, found.at_least(bar), f"the median of {of} is", f"not at least {bar:g}")
    left_open = fields["verdict"] == "undecided" != judged.verdict
    return replace(judged, verdict="undecided", reason=WAITED) if left_open else judged


def _judged(found: MedianInterval, verdict: Verdict, named: str, wanted: str) -> Judgement:
    """Return the judgement; its reason has the figure that missed, for a judgement of several has another value."""
    missed = f"{named} {found.median:.4g}, {wanted}"
    reasons = {"holds": "", "refuted": missed, "undecided": INSIDE if found.count > 5 else FEW}
    return Judgement(
        verdict=verdict, value=found.median, interval=found, repetitions=found.count, reason=reasons[verdict]
    )
