"""The overhead of a stop: pairs of a run with a stop and one without, side by side in time, in turns the one first."""

from __future__ import annotations

from typing import Any

from djinn_evaluation.afar import PROCESS_UNSEEN, is_afar
from djinn_evaluation.configuration.whitebox import Whitebox
from djinn_evaluation.cores import core_wait
from djinn_evaluation.course import Course, timed
from djinn_evaluation.intervals import MedianInterval
from djinn_evaluation.serving import pids_of
from djinn_evaluation.whitebox.trials import run_prompt, stopped_and_resumed
from djinn_jupyter.api.engine import RemoteEngine
from djinn_jupyter.api.session import RemoteSession


def measure_overhead(course: Course, engine: RemoteEngine, file: Whitebox, prompt: list[int]) -> dict[str, Any]:
    """Return the fields of `os_overhead`: milliseconds of each pair, of the overheads in percent the median with its
    interval, and the share of the pairs' time for which the engine's threads had no core (None where the kernel does
    not count that). The stops go through the layers of the file in turns."""
    wanted, layers = file.experiment, file.experiment.breakpoints.layers
    session, new = engine.session("overhead", fresh=True), wanted.inference.continuation_tokens
    _pair(session, prompt, new, layers[0], first="plain")  # the first pair is slow and not counted
    pairs = []
    with core_wait(pids_of(engine)) as waited:
        for number in range(wanted.overhead_pairs):
            course.check_time()
            first = "stopped" if number % 2 else "plain"
            pairs.append(_pair(session, prompt, new, layers[number % len(layers)], first=first))
    session.close()
    found = MedianInterval.of([100 * (stopped - plain) / plain for plain, stopped in pairs])
    without_core = PROCESS_UNSEEN if is_afar(engine) else waited.share
    course.tell(f"Overhead: {found.median:.2f}% ({found.low:.2f} to {found.high:.2f}%, {found.count} pairs)")
    return {"pairs_ms": [list(pair) for pair in pairs], "percent": found.fields(), "without_core": without_core}


def _pair(session: RemoteSession, prompt: list[int], new: int, layer: int, *, first: str) -> tuple[float, float]:
    """Return the milliseconds without a stop and with one."""
    taken = {}
    for side in sorted(("plain", "stopped"), key=lambda side: side != first):
        if side == "stopped":
            taken[side] = stopped_and_resumed(session, prompt, new, layer)[-1]
        else:
            session.clear()
            taken[side] = timed(lambda: run_prompt(session, prompt, new))[1]
    return taken["plain"], taken["stopped"]
