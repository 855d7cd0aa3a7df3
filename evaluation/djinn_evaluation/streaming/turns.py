"""The order of measuring: all sides in turn, or one tool after another where the machine has no room for all."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, replace

from djinn_evaluation.cores import core_wait

Measure = Callable[[], "Repetition"]
Tool = Callable[[], AbstractContextManager[Mapping[str, Measure]]]
"""Opens a process and yields its sides by name."""
WARM_UP = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Repetition:
    """Milliseconds of one repetition: until the first new token, of each further one, until the last. `alone` is the
    pass of a token that was asked for by itself, after the first, without the request around it. `without_core` is the
    share of the time for which the side's threads, all together, had no core; None where that is not known."""

    first: float
    token: float
    total: float
    alone: float | None = None
    without_core: float | None = None


def watched(pids: Sequence[int], measure: Measure) -> Measure:
    """Return `measure` with the time that the threads of these processes waited for a core."""

    def reading() -> Repetition:
        with core_wait(pids) as waited:
            found = measure()
        return replace(found, without_core=waited.share)

    return reading


def readings(
    tools: Sequence[Tool], repeat: int, *, together: bool, check: Callable[[], None]
) -> dict[str, list[Repetition]]:
    """Return every side's readings, repetition by repetition, after a warm-up. `together`: all tools are open at once
    and take turns, A B, B A, A B, so that a drift of the machine meets all; else each is closed before the next."""
    found: dict[str, list[Repetition]] = {}
    for group in [list(tools)] if together else [[tool] for tool in tools]:
        with ExitStack() as stack:
            sides: dict[str, Measure] = {}
            for tool in group:
                sides |= stack.enter_context(tool())
            for number in range(WARM_UP + repeat):
                for name in list(sides) if number % 2 == 0 else reversed(list(sides)):
                    check()
                    reading = sides[name]()
                    if number >= WARM_UP:
                        found.setdefault(name, []).append(reading)
    return found


def fit_together(weights: int, copies: int, host_free: int) -> bool:
    """Return whether so many copies of the weights leave half of the free memory to all else."""
    return copies * weights < host_free // 2
