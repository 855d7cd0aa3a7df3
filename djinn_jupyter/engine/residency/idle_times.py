"""The sessions that rest, since when and with which focus, and the pauses learned from them. Has no clock itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from djinn_jupyter.engine.residency.reuse_model import HORIZON, ReuseModel

LATE_SECONDS: Final = 60.0  # a session that is later than this is expected as if it had announced nothing

HasFocus = bool | None
"""True where the session's notebook has the focus, None where that is unknown: pauses with the same focus are alike.
Telling paused sessions from idle ones as well made the choice worse (docs/design.md)."""


@dataclass(slots=True, kw_only=True)
class RestUnderWay:
    """`since`: when the session was last active; `learned`: the time up to which the rest has been learned from; `due`:
    when the session said that it would be back. A rest of which that was said teaches nothing."""

    focus: HasFocus
    since: float
    learned: float
    due: float | None = None


class IdleTimes:
    """A table of pauses for each focus and one for all, and the rests under way. `now` never goes backwards."""

    def __init__(self) -> None:
        self._rests: dict[str, RestUnderWay] = {}
        self._all = ReuseModel()
        self._pauses: dict[HasFocus, ReuseModel] = {focus: ReuseModel(self._all) for focus in (None, False, True)}

    def rests(self, session: str, focus: HasFocus, now: float) -> None:
        """Note that the session rests from now on, or that the focus of its notebook has changed."""
        rest = self._rests.get(session)
        if rest is None:
            self._rests[session] = RestUnderWay(focus=focus, since=now, learned=now)
        elif rest.focus != focus:
            self._learn(rest, now, returned=False)
            rest.focus = focus

    def announce(self, session: str, due: float) -> None:
        """Note when a session that rests will be back."""
        self._rests[session].due = due

    def announced(self, session: str, now: float) -> float | None:
        """Return the seconds until the return that the session announced, 0 while it is late; None without one."""
        rest = self._rests.get(session)
        return None if rest is None or rest.due is None or now > rest.due + LATE_SECONDS else max(rest.due - now, 0.0)

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
        announced = self.announced(session, now)
        if announced is not None:
            return announced
        return 0.0 if rest is None else self._pauses[rest.focus].remaining(now - rest.since)

    def chance(self, session: str, now: float, within: float) -> float:
        """Return the probability that the session is active within so many seconds."""
        rest = self._rests.get(session)
        announced = self.announced(session, now)
        if announced is not None:
            return float(announced <= within)
        return 1.0 if rest is None else self._pauses[rest.focus].chance(now - rest.since, within)

    def _learn(self, rest: RestUnderWay, now: float, *, returned: bool) -> None:
        if rest.due is not None:
            return
        begin, end = min(rest.learned - rest.since, HORIZON), min(now - rest.since, HORIZON)
        for pauses in (self._all, self._pauses[rest.focus]):
            pauses.learn(begin, end, returned=returned)
        rest.learned = now
