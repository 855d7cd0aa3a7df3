"""Eviction orders by several policies: Djinn's own, those it is compared with, and one that knows the future."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from math import inf
from typing import ClassVar

from djinn_evaluation.agents.replay.learned import LearnedTimes
from djinn_evaluation.agents.replay.stage import Actor, Stage
from djinn_evaluation.agents.replay.trace import Trace
from djinn_jupyter.engine.residency.activity import IdleTimes
from djinn_jupyter.engine.residency.eviction_policy import Candidate, in_order
from djinn_jupyter.engine.residency.priority import Claim


def candidate(stage: Stage, actor: Actor, now: float, remaining: float) -> Candidate:
    return Candidate(
        session=actor.name,
        claim=actor.claim,
        frees_bytes=actor.size,
        rested_seconds=stage.idle_times.lasted(actor.name, now),
        remaining_seconds=remaining,
    )


class Djinn:
    """The engine's own functions, with only the information that an engine has."""

    swaps: ClassVar[bool] = True
    at_once: ClassVar[bool] = False
    times: ClassVar[type[IdleTimes]] = IdleTimes

    def discards(self, stage: Stage, actor: Actor) -> bool:
        return False

    def order(self, stage: Stage, may: list[Actor], now: float) -> list[Candidate]:
        return in_order(candidate(stage, a, now, self.remaining(stage, a, now)) for a in may)

    def remaining(self, stage: Stage, actor: Actor, now: float) -> float:
        return stage.idle_times.remaining(actor.name, now, focused=actor.signals.focused)


class ByClass(Djinn):
    """The first design: all idle sessions before any paused one, by worth within each class only."""

    def order(self, stage: Stage, may: list[Actor], now: float) -> list[Candidate]:
        return sorted(super().order(stage, may, now), key=lambda c: c.claim)


class Learned(Djinn):
    """By the rest that is expected from all earlier pauses, for the bytes and the way back that it is worth."""

    times: ClassVar[type[IdleTimes]] = LearnedTimes

    def order(self, stage: Stage, may: list[Actor], now: float) -> list[Candidate]:
        assert isinstance(stage.idle_times, LearnedTimes)
        stage.idle_times.catch_up(now)
        per_byte = {a.name: stage.restore_seconds(a) / a.size for a in may}
        dirty = {a.name: a.dirty > 0 for a in may}

        def key(c: Candidate) -> tuple[bool, float, bool]:
            return c.claim is not Claim.DETACHED, -c.remaining_seconds / per_byte[c.session], dirty[c.session]

        return sorted(super().order(stage, may, now), key=key)


class LeastWaste(Djinn):
    """The rule of InferCept (Abhyankar et al. 2024, arXiv:2402.01869), by bytes times seconds that serve no agent:
    those of keeping a session for its rest (as long again as it has lasted, where nothing is known), of moving
    it out and back, or of computing it anew. The session whose keeping wastes most beyond that leaves first."""

    def discards(self, stage: Stage, actor: Actor) -> bool:
        return self._anew(stage, actor) < self._moved(stage, actor)

    def order(self, stage: Stage, may: list[Actor], now: float) -> list[Candidate]:
        found = super().order(stage, may, now)
        least = {a.name: min(self._moved(stage, a), self._anew(stage, a)) for a in may}
        return sorted(found, key=lambda c: (least[c.session] - c.remaining_seconds) * c.frees_bytes)

    def _moved(self, stage: Stage, actor: Actor) -> float:
        return stage.restore_seconds(actor) + actor.dirty / stage.costs.host_out

    def _anew(self, stage: Stage, actor: Actor) -> float:
        return actor.size / stage.costs.recompute if stage.costs.recompute else inf


class LeastRecentlyUsed(Djinn):
    def order(self, stage: Stage, may: list[Actor], now: float) -> list[Candidate]:
        return [candidate(stage, a, now, self.remaining(stage, a, now)) for a in sorted(may, key=lambda a: a.last)]


class SwapAtPause(LeastRecentlyUsed):
    """Swaps a session out at every stop."""

    at_once = True


class NeverSwap(LeastRecentlyUsed):
    """Evicts no session; a run that does not fit is refused."""

    swaps = False


class Belady(Djinn):
    """Evicts first the session that is needed last (Belady 1966, "A study of replacement algorithms for a
    virtual-storage computer"). Optimal where all sessions have one size and one cost of return, else near it."""

    def __init__(self, trace: Trace) -> None:
        self._runs: defaultdict[str, list[float]] = defaultdict(list)
        for event in trace.events:
            if event.kind == "run":
                self._runs[event.session].append(event.time)

    def remaining(self, stage: Stage, actor: Actor, now: float) -> float:
        runs = self._runs[actor.name]
        following = bisect_right(runs, now - actor.late)
        return runs[following] + actor.late - now if following < len(runs) else inf

    def order(self, stage: Stage, may: list[Actor], now: float) -> list[Candidate]:
        return sorted(super().order(stage, may, now), key=lambda c: -c.remaining_seconds)
