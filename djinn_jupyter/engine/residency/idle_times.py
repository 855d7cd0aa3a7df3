"""The sessions that rest, since when, and when they said that they come back. Has no clock itself.

A rest of which nothing was said is expected to go on for as long again as it has lasted: times between a person's
actions have heavy tails (Blenn and Van Mieghem 2016, "Are human interactivity times lognormal?", arXiv:1607.02952).
While its notebook has the focus the rest is expected to end sooner.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

LATE_SECONDS: Final = 60.0  # a session that is later than this is expected as if it had announced nothing
TIMES_SOONER: Final = 16.0  # back with the focus; in the replay 64 waits as little, and 4 longer


@dataclass(slots=True, kw_only=True)
class RestUnderWay:
    """`since`: when the session was last active; `due`: when it said that it would be back."""

    since: float
    due: float | None = None


class IdleTimes:
    """The rests under way. `now` never goes backwards."""

    def __init__(self) -> None:
        self._rests: dict[str, RestUnderWay] = {}

    def rests(self, session: str, now: float) -> None:
        """Note that the session rests from now on, where it does not yet."""
        self._rests.setdefault(session, RestUnderWay(since=now))

    def announce(self, session: str, due: float) -> None:
        """Note when a session that rests will be back."""
        self._rests[session].due = due

    def announced(self, session: str, now: float) -> float | None:
        """Return the seconds until the return that the session announced, 0 while it is late; None without one."""
        rest = self._rests.get(session)
        return None if rest is None or rest.due is None or now > rest.due + LATE_SECONDS else max(rest.due - now, 0.0)

    def acts(self, session: str, now: float) -> None:
        """Note a use of the session, which ends its rest if it rested."""
        self.forget(session)

    def forget(self, session: str) -> None:
        """Forget a session that is closed or active."""
        self._rests.pop(session, None)

    def lasted(self, session: str, now: float) -> float:
        """Return the seconds since the session was active; 0 while it is."""
        rest = self._rests.get(session)
        return 0.0 if rest is None else now - rest.since

    def remaining(self, session: str, now: float, *, focused: bool | None = None) -> float:
        """Return the seconds for which the session, whose notebook is `focused` where that is known, is expected to
        rest on; 0 while it is active."""
        announced = self.announced(session, now)
        if announced is not None:
            return announced
        return self.lasted(session, now) / (TIMES_SOONER if focused else 1.0)
