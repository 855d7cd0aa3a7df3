"""The figures of one model as fields of the result file, and the reasons why it fails. Measures nothing."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from djinn_evaluation.course import Unmeasured
from djinn_evaluation.intervals import MedianInterval, ratios
from djinn_evaluation.link import FASTER, HAND_WAITED, at_most_by_hand
from djinn_evaluation.streaming import others
from djinn_evaluation.streaming.logits import Answer, compared, equal
from djinn_evaluation.streaming.ring import NAME
from djinn_evaluation.streaming.turns import Repetition

OPEN: Final = "The interval has the bar inside or is of too few repetitions, or waiting for a core could have turned it"
FIGURES: Final = {"first_token_ms": "first", "token_ms": "token", "end_to_end_ms": "total"}
PARTS: Final = {  # of a streamed run, and the reading of it that is held against the same of both at once
    "first_token": "first",
    "start_of_a_pass": "alone",
    "token": "token",
    "end_to_end": "total",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """The measurements of one model: `readings` of the sides that ran, `reasons` of those that did not. `tokens` are
    the new ones of each side that computes the model, all repetitions together; `ours` and `repeated` answers of the
    ring, to all samples and again to the first; `streamed` bytes a pass has to move, `moved` bytes each moved; rates in
    bytes a second."""

    readings: Mapping[str, Sequence[Repetition]]
    reasons: Mapping[str, str]
    tokens: Mapping[str, set[tuple[int, ...]]]
    ours: Sequence[Answer]
    repeated: Sequence[Answer]
    reference: Sequence[Answer]
    plain: Sequence[Answer]
    same_device: bool
    streamed: int
    moved: Sequence[float]
    rate: float
    fastest: float


def judged(seen: Evidence, *, bar: float) -> tuple[dict[str, Any], list[str]]:
    """Return the fields, and a sentence for each failure."""
    logits = compared(seen.ours, seen.reference, same_device=seen.same_device)
    of_both = {part: _of_both(seen, which, bar=bar) for part, which in PARTS.items()}
    waited = _without_core(seen.readings[others.COPYING])
    copies = at_most_by_hand(seen.rate, seen.fastest, without_core=waited)
    slow = [part for part, found in of_both.items() if found["verdict"] == "refuted"]
    checks = {
        "A pass moved other bytes than those that stream.": all(nbytes == seen.streamed for nbytes in seen.moved),
        "The reference by hand is not the model: resident its logits are others.": all(
            equal(one, other) for one, other in zip(seen.reference, seen.plain, strict=False)
        ),
        f"The logits are not the reference's; {logits['decided_by']} decided.": logits["passed"],
        "Repetitions of one prompt gave other logits.": all(equal(one, seen.ours[0]) for one in seen.repeated),
        "Sides that compute the same model on one device made different tokens.": not seen.same_device
        or len(set().union(*seen.tokens.values())) == 1,
        FASTER: copies != "refuted",
        f"Below {bar:g} of what both at once attain, the whole interval: {', '.join(slow)}.": not slow,
    }
    fields = {
        "sides": {
            **{name: _side(found) for name, found in seen.readings.items()},
            **{name: {"status": "not_run", "reason": reason} for name, reason in seen.reasons.items()},
        },
        "limit": _limits(seen),
        "of_both_at_once": of_both,
        "of_the_limit": {part: _of_limit(seen, which).fields() for part, which in PARTS.items()},
        "logits": {
            **logits,
            "repetitions_passed": _repeated(seen, logits["passed"]),
            "reference_is_plain": _is_plain(seen),
        },
        "layer_copies_gb_per_s": seen.rate / 1e9,
        "fastest_by_hand_gb_per_s": seen.fastest / 1e9,
        "layer_copies": {"verdict": copies, "by_hand_without_core": waited},
    }
    return fields, [sentence for sentence, held in checks.items() if not held]


def left_open(fields: Mapping[str, Any]) -> list[str]:
    """Return a sentence for all parts whose verdict these fields leave open, and one for the copies, if any."""
    parts = [part for part, found in fields["of_both_at_once"].items() if found["verdict"] == "undecided"]
    copies = [HAND_WAITED] if fields["layer_copies"]["verdict"] == "undecided" else []
    return [*([f"{OPEN}: {', '.join(parts)}."] if parts else []), *copies]


def _side(found: Sequence[Repetition]) -> dict[str, Any]:
    figures: dict[str, Any] = {
        figure: MedianInterval.of(_of(found, field)).fields() for figure, field in FIGURES.items()
    }
    if found[0].alone is not None:
        figures["start_of_a_pass_ms"] = MedianInterval.of(_of(found, "alone")).fields()
    return {"status": "success", **figures}


def _of(found: Sequence[Repetition], field: str) -> list[float]:
    return [float(getattr(one, field)) for one in found]


def _computing(seen: Evidence) -> Sequence[Repetition]:
    return seen.readings[others.RESIDENT if others.RESIDENT in seen.readings else others.COMPUTING]


def _limit(seen: Evidence, field: str) -> list[float]:
    """Return max(compute, bytes / bandwidth) of each repetition."""
    pairs = zip(_of(_computing(seen), field), _of(seen.readings[others.COPYING], field), strict=True)
    return [max(pair) for pair in pairs]


def _limits(seen: Evidence) -> dict[str, Any]:
    copying = _of(seen.readings[others.COPYING], "token")
    return {
        "is": "max(compute, bytes / bandwidth), both measured in this run",
        "bytes_per_pass": seen.streamed,
        "bandwidth_gb_per_s": MedianInterval.of([seen.streamed / ms / 1e6 for ms in copying]).fields(),
        **{figure: MedianInterval.of(_limit(seen, field)).fields() for figure, field in FIGURES.items()},
    }


def _of_limit(seen: Evidence, which: str) -> MedianInterval:
    """Return the limit over our reading; a token by itself has the limit of a token."""
    limit = _limit(seen, "token" if which == "alone" else which)
    return MedianInterval.of(ratios(limit, _of(seen.readings[NAME], which)))


def _of_both(seen: Evidence, which: str, *, bar: float) -> dict[str, Any]:
    """Return the ratio to both at once, and its verdict, which is left open where waiting for a core could turn it."""
    found = MedianInterval.of(ratios(_of(seen.readings[others.BOTH], which), _of(seen.readings[NAME], which)))
    waited = {name: _without_core(seen.readings[name]) for name in (NAME, others.BOTH)}
    under_ran, over_ran = (max(0.0, 1 - (share or 0.0)) for share in waited.values())
    verdict = found.at_least(bar, over_ran=over_ran, under_ran=under_ran)
    return {**found.fields(), "bar": bar, "without_core": waited, "verdict": verdict}


def _without_core(found: Sequence[Repetition]) -> float | None:
    """Return the mean share of the time for which a side's threads had no core, as far as that is known."""
    known = [one.without_core for one in found if one.without_core is not None]
    return statistics.mean(known) if known else None


def _repeated(seen: Evidence, passed: bool) -> list[bool]:
    """Return whether the logits passed each time: those of all samples, then those of the first in each repetition."""
    first = seen.reference[:1]
    again = [compared([one], first, same_device=seen.same_device)["passed"] for one in seen.repeated]
    return [passed, *again]


def _is_plain(seen: Evidence) -> Any:
    if not seen.plain:
        return Unmeasured(reason="the model does not fit on the device, so there is no resident one to compare with")
    return all(equal(one, other) for one, other in zip(seen.reference, seen.plain, strict=True))
