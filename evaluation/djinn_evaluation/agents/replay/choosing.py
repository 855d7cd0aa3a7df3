"""Eviction orders by several policies: Djinn's own, those it is compared with, and one that knows the future."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import defaultdict
from math import inf
from typing import ClassVar, Final

from djinn_evaluation.agents.replay.stage import Actor, Stage, Trace
from djinn_jupyter.engine.residency.activity import IdleTimes
from djinn_jupyter.engine.residency.eviction_policy import Candidate, latest_return_first
from djinn_jupyter.engine.residency.priority import Claim

HORIZON: Final = 7 * 86400.0  # seconds; no pause is expected to last longer
SHORTEST: Final = 0.25
EDGES: Final = (0.0, *(SHORTEST * 2 ** (n / 2) for n in range(math.ceil(2 * math.log2(HORIZON / SHORTEST)))), HORIZON)
MEMORY: Final = 400.0  # returns; a return that many further back counts for 1/e
UNSEEN: Final = 0.25  # of a return in every interval, at a hazard of 1 / elapsed


class LearnedTimes(IdleTimes):
    """A rest with an announced length teaches nothing."""

    def __init__(self) -> None:
        super().__init__()
        self._pauses = ReuseModel()
        self._learned: dict[str, float] = {}

    def acts(self, session: str, now: float) -> None:
        if session in self._rests:
            self._learn(session, now, returned=True)
        super().acts(session, now)

    def forget(self, session: str) -> None:
        super().forget(session)
        self._learned.pop(session, None)

    def catch_up(self, now: float) -> None:
        """Learn from the rests under way, as far as they have lasted."""
        for session in self._rests:
            self._learn(session, now, returned=False)

    def remaining(self, session: str, now: float, *, focused: bool | None = None) -> float:
        announced = self.announced(session, now)
        if announced is not None:
            return announced
        return self._pauses.remaining(self.lasted(session, now)) if session in self._rests else 0.0

    def _learn(self, session: str, now: float, *, returned: bool) -> None:
        rest = self._rests[session]
        if rest.due is None:
            begin = self._learned.get(session, rest.since) - rest.since
            self._pauses.learn(min(begin, HORIZON), min(now - rest.since, HORIZON), returned=returned)
            self._learned[session] = now


class ReuseModel:
    """The pauses of all sessions. All times in seconds; a pause lasts 0 .. HORIZON."""

    def __init__(self) -> None:
        self._returns = [0.0] * (len(EDGES) - 1)
        self._waited = [0.0] * (len(EDGES) - 1)
        self._beyond: list[float] | None = None

    def learn(self, begin: float, end: float, *, returned: bool) -> None:
        """Learn that a pause of `begin` seconds so far lasted at least until `end`; `returned`: it ended then."""
        begin, end = min(begin, HORIZON), min(end, HORIZON)
        if not 0.0 <= begin <= end:
            raise ValueError(f"A part of a pause ends after it begins; here from {begin} to {end}.")
        for n in range(_interval(begin), _interval(end) + 1):
            self._waited[n] += max(0.0, min(end, EDGES[n + 1]) - max(begin, EDGES[n]))
        if returned:
            self._forget()
            self._returns[_interval(end)] += 1.0
        self._beyond = None

    def remaining(self, lasted: float) -> float:
        """Return the seconds that a pause of `lasted` seconds is expected to go on; at most HORIZON."""
        lasted = min(lasted, HORIZON)
        n = _interval(lasted)
        return _within(self._hazard(n), EDGES[n + 1] - lasted, self._table()[n + 1])

    def _hazard(self, n: int) -> float:
        """Return the hazard (returns a second) between EDGES[n] and EDGES[n + 1]."""
        return (self._returns[n] + UNSEEN) / (self._waited[n] + UNSEEN * _middle(n))

    def _forget(self) -> None:
        """Scale all that was learned by one factor: hazards stay the same and new returns weigh more."""
        keep = math.exp(-1.0 / MEMORY)
        self._returns = [keep * returns for returns in self._returns]
        self._waited = [keep * waited for waited in self._waited]

    def _table(self) -> list[float]:
        """Return the seconds expected from every edge on, computed from the horizon backwards after each learning."""
        if self._beyond is None:
            self._beyond = [0.0] * len(EDGES)
            for n in reversed(range(len(EDGES) - 1)):
                self._beyond[n] = _within(self._hazard(n), EDGES[n + 1] - EDGES[n], self._beyond[n + 1])
        return self._beyond


def _within(hazard: float, seconds: float, beyond: float) -> float:
    """Return the expected seconds: up to `seconds` at this hazard, and `beyond` for pauses that last so long."""
    lasting = math.exp(-hazard * seconds)
    return -math.expm1(-hazard * seconds) / hazard + lasting * beyond


def _interval(seconds: float) -> int:
    return min(bisect_right(EDGES, seconds), len(EDGES) - 1) - 1


def _middle(n: int) -> float:
    return math.sqrt(max(EDGES[n], SHORTEST / 4) * EDGES[n + 1])


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
        return latest_return_first(candidate(stage, a, now, self.remaining(stage, a, now)) for a in may)

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
    """InferCept's rule (arXiv:2402.01869): bytes times seconds wasted by keeping, moving or computing anew."""

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
    """Evicts first the session needed last (Belady 1966); optimal where all have one size and cost of return."""

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
