"""Time to the next token's logits from a stop: recomputed, offloaded by hand, and Djinn's resume from each tier."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from djinn_evaluation import timing
from djinn_evaluation.baselines.asking import Baseline, baseline
from djinn_evaluation.configuration.sections import ResumeLatency
from djinn_evaluation.course import Course, now, timed
from djinn_evaluation.link import Link, TimedCopy, measured_link
from djinn_evaluation.serving import SIDES_APART, Shape, engine_for, finished, foretold, prompt_of, sentence, shape_of
from djinn_jupyter.api.engine import RemoteEngine
from djinn_jupyter.api.session import RemoteSession
from djinn_jupyter.errors import DjinnError
from djinn_jupyter.units import MIB

LOG = "resume_latency.log"
THREADS = 1
PLACES = ("resident", "host", "disk")
SIDES = ("djinn_resume", "recompute", "manual_offload")
FILES = tuple(f"{side}_latency.json" for side in SIDES)


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """Milliseconds of each resume, bytes moved for one, and `whole`: of a pass without a stop right after each."""

    milliseconds: tuple[float, ...]
    moved: int
    whole: tuple[float, ...] = ()

    def copies(self, layer: int) -> list[TimedCopy]:
        """Return the bytes of a resume with the seconds of the fastest: no resume ends before its bytes are there."""
        nbytes, seconds = self.moved, min(self.milliseconds) / 1000
        return [TimedCopy(what=f"A resume at layer {layer}", way="in", nbytes=nbytes, seconds=seconds)]

    def fields(self, layer: int) -> dict[str, Any]:
        return {
            "layer": layer,
            "resume_latency_ms": statistics.fmean(self.milliseconds),
            "resume_latency_std_ms": statistics.pstdev(self.milliseconds),
            "resume_latency_median_ms": statistics.median(self.milliseconds),
            "num_samples": len(self.milliseconds),
            "data_transferred_mb": self.moved / MIB,
        }


def run(course: Course, file: ResumeLatency) -> list[str]:
    """Write a file for each side; return the reasons why the run fails, none when it passes."""
    _require(foretold(file.model), file)
    tops: dict[int, set[int]] = {layer: set() for layer in file.layers}
    failures: list[str] = []
    skipped = (file.skip_djinn, file.skip_recompute, file.skip_offload)
    for name in (name for name, skip in zip(FILES, skipped, strict=True) if not skip):
        course.write_partial(name, (), _fields(course, file, [], {}))
    with engine_for(course, file.model, dtype=file.dtype, threads=THREADS) as engine:
        _require(shape_of(engine), file)
        prompt, dtype = prompt_of(engine, file.max_length, seed=1), engine.description.dtype
        count = engine.description.layers
        link = measured_link(course, engine.description.device)
        if not file.skip_djinn:
            failures = _djinn(course, engine, file, prompt, tops, link)
        ours_agree = all(len(found) <= 1 for found in tops.values())
    if not (file.skip_recompute and file.skip_offload):
        with baseline("eager") as eager:
            eager.ask("load", model=file.model, dtype=dtype, threads=THREADS, **course.setup.words())
            for name, skip in (("recompute", file.skip_recompute), ("manual_offload", file.skip_offload)):
                if not skip:
                    _plain(course, file, eager, name, prompt, tops, count)
    failures += _disagreements(course, tops, ours_agree=ours_agree)
    status = course.concluded(failures)
    for name, fields in [*course.written.items()] if status != "success" else []:
        course.write(name, {**fields, "status": status, "failures": failures})
    return failures


def _disagreements(course: Course, tops: dict[int, set[int]], *, ours_agree: bool) -> list[str]:
    """Return a sentence for each layer with several next tokens; over a line they are left open."""
    found = [
        f"The sides or resumes disagree on the next token at layer {n}." for n, named in tops.items() if len(named) > 1
    ]
    if not (course.afar and ours_agree):
        return found
    for one in found:
        course.leave_open(f"{one} {sentence(SIDES_APART)}")
    return []


def _require(shape: Shape, file: ResumeLatency) -> None:
    shape.require_layers({f"layers[{number}]": layer for number, layer in enumerate(file.layers)})
    shape.require_room(file.max_length, 1)


def _djinn(
    course: Course,
    engine: RemoteEngine,
    file: ResumeLatency,
    prompt: list[int],
    tops: dict[int, set[int]],
    link: Link,
) -> list[str]:
    """Write Djinn's file; return the reasons why its figures cannot be."""
    copies: list[TimedCopy] = []
    session, name = engine.session("resume latency", fresh=True), "djinn_resume_latency.json"
    results, fields = [], {}
    beside, failures = engine.session("whole pass", fresh=True), []
    for layer in file.layers:
        for place in PLACES:
            course.check_time()
            side, named = _resumes(session, beside, layer, place, prompt, file.warmup, file.repeat)
            failures += _too_slow(course, layer, place, side, link)
            tops[layer] |= named
            copies += side.copies(layer)
            results.append({**side.fields(layer), "kv": place, "whole_pass_median_ms": statistics.median(side.whole)})
            more = {"kv": list(PLACES), "num_layers": engine.description.layers, "link": link.fields(copies)}
            fields = _fields(course, file, results, more)
            course.write_partial(name, (), fields)
            course.tell(f"layer {layer}, KV {place}: {results[-1]['resume_latency_median_ms']:.2f} ms")
    course.write(name, {"status": "success", **fields})
    return failures + link.failures(copies)


def _too_slow(course: Course, layer: int, place: str, side: Side, link: Link) -> list[str]:
    """Return a failure where resumes took longer than their bar; slower from the disk is left open."""
    resident = place == "resident"
    base = "the whole pass" if resident else "two whole passes and a plain copy together"
    what = f"a resume at layer {layer} (KV {place}) takes longer than {base}"
    copied, passes = (0.0, 1) if resident else (1000 * link.seconds("in", side.moved), 2)
    room = [passes * whole + copied - taken for whole, taken in zip(side.whole, side.milliseconds, strict=True)]
    found = timing.failures(course, what, room)
    if place == "disk" and found:
        course.leave_open(f"{found[0]} No plain read of the disk was measured that could tell why.")
        return []
    return found


def _resumes(
    session: RemoteSession,
    beside: RemoteSession,
    layer: int,
    place: str,
    prompt: list[int],
    warmup: int,
    repeat: int,
) -> tuple[Side, set[int]]:
    """Stop once, then resume repeatedly from the same stop, with the session's bytes moved to `place` before each, and
    a whole pass of `beside` after it: a slower minute of the machine affects both. Return the times, and the set of
    next tokens, which must be one."""
    session.clear()
    session.breakpoint(f"resid_post.{layer}", when="step == 0")
    session.run(prompt, max_new_tokens=1, ignore_eos=True)
    taken, whole, moved, tops = [], [], 0, set()
    for number in range(warmup + repeat):
        _bring(session, place)
        done, milliseconds = timed(session.resume)
        tops.add(finished(done).tokens[0])
        transfer = session.describe().last_transfer
        moved = (
            transfer.bytes_moved if place != "resident" and transfer is not None and transfer.direction == "in" else 0
        )
        session.back()
        if number >= warmup:
            taken.append(milliseconds)
            whole.append(timed(lambda: beside.run(prompt, max_new_tokens=1, ignore_eos=True))[1])
    return Side(milliseconds=tuple(taken), moved=moved, whole=tuple(whole)), tops


def _bring(session: RemoteSession, place: str) -> None:
    """Move the session's bytes to one of PLACES. DjinnError where they are not there afterwards."""
    if place != "resident":
        session.swap_out("disk" if place == "disk" else "host")
    there = session.describe().residency
    if there != place:
        raise DjinnError(f"A session was to be {place} for its resume and is {there}.")


def _plain(
    course: Course,
    file: ResumeLatency,
    eager: Baseline,
    name: str,
    prompt: list[int],
    tops: dict[int, set[int]],
    count: int,
) -> None:
    results, fields = [], {}
    for layer in file.layers:
        course.check_time()
        verb, more = ("recompute", {}) if name == "recompute" else ("offload", {"layer": layer})
        replies = [eager.ask(verb, tokens=prompt, **more) for _ in range(file.warmup + file.repeat)][file.warmup :]
        tops[layer] |= {reply["top"] for reply in replies}
        side = Side(milliseconds=tuple(r["milliseconds"] for r in replies), moved=replies[0].get("bytes", 0))
        results.append(side.fields(layer))
        fields = _fields(course, file, results, {"num_layers": count})
        course.write_partial(f"{name}_latency.json", (), fields)
        course.tell(f"layer {layer}, {name}: {results[-1]['resume_latency_median_ms']:.2f} ms")
    course.write(f"{name}_latency.json", {"status": "success", **fields})


def _fields(
    course: Course, file: ResumeLatency, results: Sequence[dict[str, Any]], more: dict[str, Any]
) -> dict[str, Any]:
    metadata = {"timestamp": now(), "max_length": file.max_length, "warmup": file.warmup, "repeat": file.repeat, **more}
    return {
        "model": course.setup.named(file.model),
        "layers": list(file.layers),
        "results": list(results),
        "metadata": metadata,
    }
