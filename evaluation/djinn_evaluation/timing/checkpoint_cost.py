"""The cost of session A's stops to a neighbour B that is generating: alone, with stops, with write-through."""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeAlias

from djinn_evaluation import timing
from djinn_evaluation.configuration.sections import CheckpointCost
from djinn_evaluation.course import NOT_YET, Course, Unmeasured, timed
from djinn_evaluation.link import Absence, TimedCopy, absence, measured_link
from djinn_evaluation.serving import Shape, beside, engine_for, foretold, paused, prompt_of, shape_of
from djinn_jupyter.api.engine import RemoteEngine
from djinn_jupyter.api.session import RemoteSession
from djinn_jupyter.units import GIB

LOG = "checkpoint_cost.log"
FILE = "checkpoint_cost_results.json"
FILES = (FILE,)
FIELDS = "neighbour_tokens_per_s dispatch_ms copy_ms restore_ms bytes interference_percent link".split()
STOPPING = ("with_stops", "with_write_through")
PARTS = ("alone", *STOPPING)
Rates: TypeAlias = dict[str, list[float]]  # B's tokens per second in each part, one per turn
THREADS = 1
NEIGHBOUR_PROMPT = 8
TOKENS = 4  # of B, that a way out and back may cost it besides the stop: nothing of a copy waits in B's pass
NOTHING = Unmeasured(reason="nothing of it was measured")


@dataclass(slots=True)
class Costs:
    """A's stops in each turn; milliseconds of copies, and of a third session's answers meanwhile; bytes moved."""

    stops: dict[str, list[int]] = field(default_factory=lambda: {part: [] for part in STOPPING})
    dispatch: list[float] = field(default_factory=list)
    copy: list[float] = field(default_factory=list)
    restore: list[float] = field(default_factory=list)
    moved: list[int] = field(default_factory=list)
    copies: list[TimedCopy] = field(default_factory=list)

    def add(self, found: Absence) -> None:
        self.copies += found.copies()
        self.dispatch.append(found.dispatch_ms)
        if found.copy_ms is not None:
            self.copy.append(found.copy_ms)
        self.restore.append(found.back_ms)
        self.moved.append(found.bytes_moved)


def run(course: Course, file: CheckpointCost) -> list[str]:
    """Write the result file; return the reasons why the run fails, none when it passes."""
    host = None if file.host_limit_gb is None else int(file.host_limit_gb * GIB)
    rates: Rates = {part: [] for part in PARTS}
    costs = Costs()
    _require(foretold(file.model), file)
    course.write_partial(FILE, FIELDS, {"model": course.setup.named(file.model)})
    with engine_for(course, file.model, dtype=file.dtype, host_memory=host, threads=THREADS) as engine:
        _require(shape_of(engine), file)
        _measure(course, engine, file, rates, costs)
        link = measured_link(course, engine.description.device)
    failures = link.failures(costs.copies)
    failures += [
        f"Session A never stopped in {part}; make neighbour_tokens larger."
        for part, counts in costs.stops.items()
        if not any(counts)
    ]
    slower = f"a move costs the neighbour more than a stop and {TOKENS} of its tokens"
    failures += timing.failures(course, slower, _room(file.neighbour_tokens, rates, costs.stops))
    figures = {**_figures(course, file, rates, costs), "link": link.fields(costs.copies), "failures": failures}
    course.write(FILE, {"status": course.concluded(failures), **figures})
    return failures


def _require(shape: Shape, file: CheckpointCost) -> None:
    shape.require_layers({"layer": file.layer})
    shape.require_room(file.max_length, 1)
    shape.require_room(NEIGHBOUR_PROMPT, file.neighbour_tokens)


def _measure(course: Course, engine: RemoteEngine, file: CheckpointCost, rates: Rates, costs: Costs) -> None:
    a, b = engine.session("A", fresh=True), engine.session("neighbour B", fresh=True)
    prompt = prompt_of(engine, file.max_length, seed=1)
    a.breakpoint(f"resid_post.{file.layer}", when="step == 0")

    def stopped(part: str) -> None:
        costs.stops[part][-1] += 1
        if part == "with_write_through":
            costs.add(absence(engine, a))

    stopping = {
        part: partial(_stopping, a, prompt, file.stop_interval_seconds, partial(stopped, part)) for part in STOPPING
    }
    for _ in range(file.repeat):  # in turns, so that a slower minute of the machine affects all parts
        for name in PARTS:
            course.check_time()
            if name in stopping:
                costs.stops[name].append(0)
            with stopping.get(name, nullcontext)():
                rates[name].append(_rate(engine, b, file))
            course.tell(f"{name}: {rates[name][-1]:.1f} tokens/s")
            course.write_partial(FILE, FIELDS, _figures(course, file, rates, costs))


def _figures(course: Course, file: CheckpointCost, rates: Rates, costs: Costs) -> dict[str, Any]:
    """Return the file's fields besides its status, as far as they are measured."""
    return {
        "model": course.setup.named(file.model),
        "neighbour_tokens_per_s": {part: _median(found) for part, found in rates.items()},
        "neighbour_rates": {part: list(found) for part, found in rates.items()},  # tokens/s, turn by turn
        "dispatch_ms": _median(costs.dispatch),
        "copy_ms": _median(costs.copy),
        "restore_ms": _median(costs.restore),
        "bytes": max(costs.moved) if costs.moved else NOTHING,
        "interference_percent": _slower(rates["alone"], rates["with_stops"]),
        "interference_with_write_through_percent": _slower(rates["alone"], rates["with_write_through"]),
        "dispatch_samples_ms": list(costs.dispatch),
        "copy_samples_ms": list(costs.copy),
        "stops": sum(map(sum, costs.stops.values())),
        "stops_each_turn": {part: list(counts) for part, counts in costs.stops.items()},
    }


def _room(tokens: int, rates: Rates, stops: dict[str, list[int]]) -> list[float]:
    """Return the milliseconds by which a move cost B less than a stop and TOKENS of its tokens, of each turn."""
    took = [[1000 * tokens / rate for rate in rates[part]] for part in PARTS]
    turns = zip(*took, *(stops[part] for part in STOPPING), strict=True)
    found = []
    for alone, stopped, moved, stood, left in turns:
        if stood and left:
            stop = max(0.0, (stopped - alone) / stood)
            found.append(2 * stop + TOKENS * alone / tokens - (moved - alone) / left)
    return found


def _rate(engine: RemoteEngine, b: RemoteSession, file: CheckpointCost) -> float:
    """Run B; return its tokens per second."""
    done, milliseconds = timed(
        lambda: b.run(
            prompt_of(engine, NEIGHBOUR_PROMPT, seed=2), max_new_tokens=file.neighbour_tokens, ignore_eos=True
        )
    )
    return 1000 * len(done.tokens) / milliseconds


@contextmanager
def _stopping(a: RemoteSession, prompt: list[int], interval: float, stopped: Callable[[], None]) -> Iterator[None]:
    """Run A up to its stop once an interval, in a thread, until the block ends; call `stopped` each time."""

    def stop_again_and_again(ended: threading.Event) -> None:
        while not ended.is_set():
            begun = time.monotonic()
            paused(a.run(prompt, max_new_tokens=1, ignore_eos=True))
            if not ended.is_set():
                stopped()
            ended.wait(max(0.0, interval - (time.monotonic() - begun)))

    with beside(stop_again_and_again, "djinn-experiment-stops", a.channel):
        yield


def _median(values: list[float]) -> float | Unmeasured:
    return statistics.median(values) if values else NOTHING


def _slower(alone: list[float], beside: list[float]) -> float | Unmeasured:
    """Return B's slowdown in percent of its rate alone."""
    if not alone or not beside:
        return NOT_YET
    most = statistics.median(alone)
    return 100 * (most - statistics.median(beside)) / most
