"""The clients that hear events, by the session whose events they hear, and the latest events. Knows no sockets; called
from one thread."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from djinn_jupyter.engine.process.event_ring import EventRing
from djinn_jupyter.errors import UsageError

MOST_NAMES: Final = 1000
"""That one client may listen to. A name has at most 512 characters."""


class Listeners:
    """None in place of a session stands for all sessions. A client that listens to both hears each event once."""

    def __init__(self) -> None:
        self.events = EventRing()
        self._peers: dict[str | None, set[bytes]] = {}
        self._names: dict[bytes, set[str | None]] = {}

    def add(self, peer: bytes, session: str | None) -> None:
        """Raises UsageError where the client listens to too many sessions."""
        names = self._names.setdefault(peer, set())
        if len(names) >= MOST_NAMES and session not in names:
            raise UsageError(f"A client listens to at most {MOST_NAMES:,} sessions by name; listen to all of them.")
        names.add(session)
        self._peers.setdefault(session, set()).add(peer)

    def remove(self, peer: bytes, session: str | None) -> None:
        self._names.get(peer, set()).discard(session)
        peers = self._peers.get(session, set())
        peers.discard(peer)
        if not peers:
            self._peers.pop(session, None)

    def forget(self, peer: bytes) -> None:
        """Remove a client that has gone."""
        for session in self._names.pop(peer, ()):
            self._peers[session].discard(peer)
            if not self._peers[session]:
                del self._peers[session]

    def hears(self, peer: bytes, session: str) -> bool:
        return not {session, None}.isdisjoint(self._names.get(peer, ()))

    def of(self, session: str) -> Collection[bytes]:
        """Return the clients that hear an event of this session."""
        return self._peers.get(session, set()) | self._peers.get(None, set())
