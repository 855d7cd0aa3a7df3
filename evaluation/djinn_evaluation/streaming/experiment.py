"""The run of `streaming`: each model on all sides, repetition by repetition, one result file for all models."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from typing import Any, Final

import msgspec

from djinn_evaluation.afar import SIDES_APART, sentence
from djinn_evaluation.baselines.asking import Baseline, baseline
from djinn_evaluation.configuration.streaming import Streaming
from djinn_evaluation.course import Course, now
from djinn_evaluation.serving import reaches_over_a_line
from djinn_evaluation.streaming.judging import Evidence, judged, left_open
from djinn_evaluation.streaming.others import OFFLOADS, RESIDENT, HandSide, OffloadSide, asked
from djinn_evaluation.streaming.ring import NAME, RingSide
from djinn_evaluation.streaming.subjects import DrawnShape, Subject, subject
from djinn_evaluation.streaming.turns import Tool, fit_together, readings
from djinn_jupyter.units import GIB, spell_bytes

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
    with baseline("by_hand") as hand:
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
    """Measure one model on all sides; return its fields and its failures. `hand` loads it too where all sides fit into
    memory together."""
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
