"""The run of `streaming`: each model on all sides, repetition by repetition, one result file for all models."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from djinn_evaluation.baselines.asking import Baseline, baseline
from djinn_evaluation.configuration.sections import Streaming
from djinn_evaluation.course import Course, Unmeasured, now
from djinn_evaluation.intervals import MedianInterval, ratios
from djinn_evaluation.link import FASTER, HAND_WAITED, at_most_by_hand
from djinn_evaluation.serving import SIDES_APART, reaches_over_a_line, sentence
from djinn_evaluation.streaming import sides
from djinn_evaluation.streaming.sides import (
    NAME,
    OFFLOADS,
    RESIDENT,
    Answer,
    DrawnShape,
    HandSide,
    OffloadSide,
    Repetition,
    RingSide,
    Subject,
    Tool,
    asked,
    compared,
    equal,
    fit_together,
    readings,
    subject,
)
from djinn_jupyter.units import GIB, spell_bytes

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
    """One model's measurements: readings, answers and bytes of its sides, and the reasons of those that did not run."""

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
    waited = _without_core(seen.readings[sides.COPYING])
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
    return seen.readings[sides.RESIDENT if sides.RESIDENT in seen.readings else sides.COMPUTING]


def _limit(seen: Evidence, field: str) -> list[float]:
    """Return max(compute, bytes / bandwidth) of each repetition."""
    pairs = zip(_of(_computing(seen), field), _of(seen.readings[sides.COPYING], field), strict=True)
    return [max(pair) for pair in pairs]


def _limits(seen: Evidence) -> dict[str, Any]:
    copying = _of(seen.readings[sides.COPYING], "token")
    return {
        "is": "max(compute, bytes / bandwidth), both measured in this run",
        "bytes_per_pass": seen.streamed,
        "bandwidth_gb_per_s": MedianInterval.of([seen.streamed / ms / 1e6 for ms in copying]).fields(),
        **{figure: MedianInterval.of(_limit(seen, field)).fields() for figure, field in FIGURES.items()},
    }


def _of_limit(seen: Evidence, which: str) -> MedianInterval:
    """Return the limit over our reading; a single token has the limit of a token."""
    limit = _limit(seen, "token" if which == "alone" else which)
    return MedianInterval.of(ratios(limit, _of(seen.readings[NAME], which)))


def _of_both(seen: Evidence, which: str, *, bar: float) -> dict[str, Any]:
    """Return the ratio to both at once, and its verdict, which is left open where waiting for a core could turn it."""
    found = MedianInterval.of(ratios(_of(seen.readings[sides.BOTH], which), _of(seen.readings[NAME], which)))
    waited = {name: _without_core(seen.readings[name]) for name in (NAME, sides.BOTH)}
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


LOG: Final = "streaming.log"
FILE: Final = "streaming_results.json"
FILES: Final = (FILE,)
FIELDS: Final = ("models", "summary_table", "timestamp")
TABLE: Final = ("first_token_ms", "start_of_a_pass_ms", "token_ms", "end_to_end_ms")


def run(course: Course, file: Streaming) -> list[str]:
    """Write the file after each model; return the reasons why the run fails, none when it passes."""
    if reaches_over_a_line(course):
        return _unseen(course, file)
    found: list[dict[str, Any]] = []
    failures: list[str] = []
    course.write_partial(FILE, FIELDS, {"config": msgspec.to_builtins(file)})
    with baseline("eager.ByHand") as hand:
        for opened in _subjects(course, file, hand):
            with opened as chosen:
                fields, said = _one(course, file, chosen, hand)
            found.append(fields)
            failures += [f"{chosen.name}: {sentence}" for sentence in said]
            course.write_partial(FILE, FIELDS, _fields(file, found))
    status = course.concluded(failures)
    course.write(FILE, {"status": status, **_fields(file, found), "failures": failures})
    return failures


def _unseen(course: Course, file: Streaming) -> list[str]:
    """Leave the run undecided: the engine is not on the machine of the sides that it takes turns with."""
    course.leave_open(sentence(SIDES_APART))
    status, unseen = course.concluded([]), dict.fromkeys(FIELDS, SIDES_APART)
    course.write(FILE, {"status": status, **unseen, "config": msgspec.to_builtins(file), "timestamp": now()})
    return []


def _subjects(course: Course, file: Streaming, hand: Baseline) -> Iterator[Any]:
    if file.model is not None:
        yield nullcontext(Subject(name=course.setup.named(file.model), source=file.model))
        return
    for shape in file.shapes:
        drawn = DrawnShape(
            architecture=shape,
            divide_widths=file.divide_widths,
            layers=file.layers,
            dtype=file.dtype,
            weights_gb=file.weights_gb,
        )
        yield subject(course, drawn, hand)


def _one(course: Course, file: Streaming, chosen: Subject, hand: Baseline) -> tuple[dict[str, Any], list[str]]:
    """Measure one model on all sides; return its fields and failures. `hand` loads it too where all fit."""
    sizes = hand.ask("sizes", **asked(course, chosen, file))
    weights = sizes["weight_bytes"]
    ring = RingSide(course=course, subject=chosen, file=file, budget=int(file.device_share * weights))
    names = () if file.skip_offloads else OFFLOADS
    offloads = [OffloadSide(course=course, subject=chosen, file=file, ring=ring, name=name) for name in names]
    together = fit_together(weights, 2 + len(names), min(sizes["host_free"], sizes["device_free"]))
    by_hand = HandSide(course=course, subject=chosen, file=file, ring=ring, running=hand if together else None)
    early = [offload.started for offload in offloads] if together else []
    tools: list[Tool] = [*early, ring.opened, by_hand.opened, *(offload.opened for offload in offloads)]
    measured = readings(tools, file.repeat, together=together, check=course.check_time)
    reasons = {offload.name: offload.reason for offload in offloads if offload.reason is not None}
    if not by_hand.fits:
        reasons[RESIDENT] = _no_room(weights, sizes["device_free"])
    seen = Evidence(
        readings={name: times for name, times in measured.items() if name not in reasons},
        reasons=reasons,
        tokens=_tokens(ring, by_hand, offloads),
        ours=ring.answers,
        repeated=ring.repeated,
        reference=by_hand.reference,
        plain=by_hand.plain,
        same_device=ring.device.partition(":")[0] == by_hand.device.partition(":")[0],
        streamed=ring.facts()["bytes_streamed_per_pass"],
        moved=ring.moved,
        rate=ring.mean_rate(),
        fastest=by_hand.fastest,
    )
    fields, failures = judged(seen, bar=file.least_of_both)
    course.undecided += [f"{chosen.name}: {sentence}" for sentence in left_open(fields)]
    _tell(course, chosen, fields)
    return {
        "model": chosen.name,
        "share_of_layers": chosen.share_of_layers,
        "weights_gb": weights / GIB,
        "measured": "in turn" if together else "one tool after another, for the host has no room for all at once",
        "reference": "plain Hugging Face, its layers copied by hand one at a time",
        "reference_device": by_hand.device,
        **ring.facts(),
        **fields,
        "failures": failures,
    }, failures


def _no_room(weights: int, free: int) -> str:
    return f"the weights take {spell_bytes(weights)}, and {spell_bytes(free)} of the device are free"


def _tokens(ring: RingSide, by_hand: HandSide, offloads: list[OffloadSide]) -> dict[str, set[tuple[int, ...]]]:
    """Return the new tokens after the first sample, of each side that computes the model."""
    ours = {answer.tokens for answer in (ring.answers[0], *ring.repeated)}
    return {NAME: ours, **by_hand.tokens, **{one.name: one.tokens for one in offloads if one.reason is None}}


def _tell(course: Course, chosen: Subject, fields: Mapping[str, Any]) -> None:
    for name, side in fields["sides"].items():
        told = side.get("reason") or ", ".join(f"{side[key]['median']:.1f} {key}" for key in TABLE if key in side)
        course.tell(f"{chosen.name}: {name}: {told}")
    for part, found in fields["of_both_at_once"].items():
        interval = f"{found['median']:.3f} ({found['low']:.3f} to {found['high']:.3f})"
        course.tell(f"{chosen.name}: {part}: {interval} of both at once, {found['verdict']}")


def _fields(file: Streaming, found: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "config": msgspec.to_builtins(file),
        "models": found,
        "summary_table": _table(found),
        "timestamp": now(),
    }


def _table(found: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return the medians, a row for each model and figure, a cell for each side."""
    names = list(dict.fromkeys(name for fields in found for name in fields["sides"]))
    table = {}
    for fields in found:
        for figure in TABLE:
            sides = {name: fields["sides"].get(name, {}).get(figure) for name in names}
            limit = fields["limit"].get(figure)
            cells = {**sides, "limit": limit}
            table[f"{fields['model']}: {figure}"] = {n: None if c is None else c["median"] for n, c in cells.items()}
    return table
