"""Eviction orders by several policies: Djinn's own, those it is compared with, and one that knows the future."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from math import inf
from typing import ClassVar

from djinn_evaluation.agents.replay.stage import Actor, Stage
from djinn_evaluation.agents.replay.trace import Trace
from djinn_jupyter.engine.residency.eviction_policy import Candidate, in_order


def candidate(stage: Stage, actor: Actor, now: float, remaining: float) -> Candidate:
    return Candidate(
        session=actor.name,
        claim=actor.claim,
        frees_bytes=actor.size,
        dirty_bytes=actor.dirty,
        restore_seconds=stage.restore_seconds(actor),
        rested_seconds=stage.idle_times.lasted(actor.name, now),
        remaining_seconds=remaining,
    )


class Djinn:
    """The engine's own functions, with only the information that an engine has."""

    swaps: ClassVar[bool] = True
    at_once: ClassVar[bool] = False

    def order(self, stage: Stage, may: list[Actor], now: float) -> list[Candidate]:
        stage.idle_times.catch_up(now)
        return in_order(candidate(stage, a, now, stage.idle_times.remaining(a.name, now)) for a in may)


class ByClass(Djinn):
    """The first design: all idle sessions before any paused one, by worth within each class only."""

    def order(self, stage: Stage, may: list[Actor], now: float) -> list[Candidate]:
        return sorted(super().order(stage, may, now), key=lambda c: c.claim)


class LeastRecentlyUsed:
    swaps: ClassVar[bool] = True
    at_once: ClassVar[bool] = False

    def order(self, stage: Stage, may: list[Actor], now: float) -> list[Candidate]:
        return [candidate(stage, a, now, 0.0) for a in sorted(may, key=lambda a: a.last)]


class SwapAtPause(LeastRecentlyUsed):
    """Swaps a session out at every stop."""

    at_once = True


class NeverSwap(LeastRecentlyUsed):
    """Evicts no session; a run that does not fit is refused."""

    swaps = False


class Belady:
    """Evicts first the session that is needed last (Belady 1966, "A study of replacement algorithms for a
    virtual-storage computer"). Optimal where all sessions have one size and one cost of return, else near it."""

    swaps: ClassVar[bool] = True
    at_once: ClassVar[bool] = False

    def __init__(self, trace: Trace) -> None:
        self._runs: defaultdict[str, list[float]] = defaultdict(list)
        for event in trace.events:
            if event.kind == "run":
                self._runs[event.session].append(event.time)

    def remaining(self, actor: Actor, now: float) -> float:
        runs = self._runs[actor.name]
        following = bisect_right(runs, now)
        return runs[following] - now if following < len(runs) else inf

    def order(self, stage: Stage, may: list[Actor], now: float) -> list[Candidate]:
        chosen = [candidate(stage, a, now, self.remaining(a, now)) for a in may]
        return sorted(chosen, key=lambda c: -c.remaining_seconds)
