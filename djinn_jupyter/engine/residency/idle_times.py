"""Which sessions rest, since when and of which kind, and the pauses learned from them. The clock is the caller's."""

from __future__ import annotations

from dataclasses import dataclass

from djinn_jupyter.engine.residency.reuse_model import HORIZON, ReuseModel

Kind = bool | None
"""True where the session's notebook has the focus, None where that is unknown: pauses of a kind are alike. Telling
paused sessions from idle ones as well made the choice worse (docs/design.md)."""


@dataclass(slots=True, kw_only=True)
class Rest:
    """`since`: when the session was last active; `learned`: the time up to which the rest has been learned from."""

    kind: Kind
    since: float
    learned: float


class IdleTimes:
    """A table of pauses for each kind and one for all, and the rests under way. `now` never goes backwards."""

    def __init__(self) -> None:
        self._rests: dict[str, Rest] = {}
        self._all = ReuseModel()
        self._pauses: dict[Kind, ReuseModel] = {kind: ReuseModel(self._all) for kind in (None, False, True)}

    def rests(self, session: str, kind: Kind, now: float) -> None:
        """Note that the session rests from now on, or that its rest is now of another kind."""
        rest = self._rests.get(session)
        if rest is None:
            self._rests[session] = Rest(kind=kind, since=now, learned=now)
        elif rest.kind != kind:
            self._learn(rest, now, returned=False)
            rest.kind = kind

    def acts(self, session: str, now: float) -> None:
        """Note a use of the session, which ends its rest if it rested."""
        rest = self._rests.pop(session, None)
        if rest is not None:
            self._learn(rest, now, returned=True)

    def forget(self, session: str) -> None:
        """Forget a closed session; the length of its rest will never be known."""
        self._rests.pop(session, None)

    def catch_up(self, now: float) -> None:
        """Learn from the rests under way, as far as they have lasted."""
        for rest in self._rests.values():
            self._learn(rest, now, returned=False)

    def lasted(self, session: str, now: float) -> float:
        """Return the seconds since the session was active; 0 while it is."""
        rest = self._rests.get(session)
        return 0.0 if rest is None else now - rest.since

    def remaining(self, session: str, now: float) -> float:
        """Return the seconds for which the session is expected to rest on; 0 while it is active."""
        rest = self._rests.get(session)
        return 0.0 if rest is None else self._pauses[rest.kind].remaining(now - rest.since)

    def chance(self, session: str, now: float, within: float) -> float:
        """Return the probability that the session is active within so many seconds."""
        rest = self._rests.get(session)
        return 1.0 if rest is None else self._pauses[rest.kind].chance(now - rest.since, within)

    def _learn(self, rest: Rest, now: float, *, returned: bool) -> None:
        begin, end = min(rest.learned - rest.since, HORIZON), min(now - rest.since, HORIZON)
        for pauses in (self._all, self._pauses[rest.kind]):
            pauses.learn(begin, end, returned=returned)
        rest.learned = now
