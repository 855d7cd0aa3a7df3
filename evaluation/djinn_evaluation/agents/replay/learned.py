"""Rests whose length is learned from all earlier pauses, as the engine did before (there by the focus too)."""

from __future__ import annotations

from djinn_evaluation.agents.replay.reuse_model import HORIZON, ReuseModel
from djinn_jupyter.engine.residency.idle_times import IdleTimes


class LearnedTimes(IdleTimes):
    """A rest of which its length was said teaches nothing."""

    def __init__(self) -> None:
        super().__init__()
        self._all = ReuseModel()
        self._pauses = ReuseModel(self._all)
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

    def remaining(self, session: str, now: float) -> float:
        announced = self.announced(session, now)
        if announced is not None:
            return announced
        return self._pauses.remaining(self.lasted(session, now)) if session in self._rests else 0.0

    def chance(self, session: str, now: float, within: float) -> float:
        unsaid = session in self._rests and self.announced(session, now) is None
        if not unsaid:
            return super().chance(session, now, within)
        return self._pauses.chance(self.lasted(session, now), within)

    def _learn(self, session: str, now: float, *, returned: bool) -> None:
        rest = self._rests[session]
        if rest.due is None:
            begin = self._learned.get(session, rest.since) - rest.since
            for pauses in (self._all, self._pauses):
                pauses.learn(min(begin, HORIZON), min(now - rest.since, HORIZON), returned=returned)
            self._learned[session] = now
