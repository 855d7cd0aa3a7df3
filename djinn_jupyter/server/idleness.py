"""Since when sessions are idle, from readings that may be old: an engine describes the untouched only now and then.

So a reading says at least how long a session was idle, and only a smaller number than before says that it was used.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

REMEMBERED_SECONDS = 10.0  # between two readings further apart a session may have been used unseen


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """A reading: its time, what it said, and what is known since. In seconds, `at` and `since` since the epoch."""

    at: float
    idle_seconds: float
    since: float


class Idleness:
    """The sessions of one engine."""

    def __init__(self) -> None:
        self._seen: dict[str, Seen] = {}

    def read(self, idle: Mapping[str, float], at: float) -> dict[str, float]:
        """The moment since when each session is idle, given what a reading at `at` says of how long."""
        self._seen = {name: self._see(self._seen.get(name), seconds, at) for name, seconds in idle.items()}
        return {name: seen.since for name, seen in self._seen.items()}

    def _see(self, before: Seen | None, idle_seconds: float, at: float) -> Seen:
        since = at - idle_seconds
        if before is not None and at - before.at < REMEMBERED_SECONDS and idle_seconds >= before.idle_seconds:
            since = min(since, before.since)
        return Seen(at=at, idle_seconds=idle_seconds, since=since)
