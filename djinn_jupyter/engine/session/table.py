"""The sessions of an engine by name, and which of them changed: for the journal, and for those who show them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from djinn_jupyter.engine.memory.offload.storages import Blobs
from djinn_jupyter.engine.session.session import Session
from djinn_jupyter.errors import UnknownSession


class SessionTable(Mapping[str, Session]):
    """A session in it stands under a number that none of its name had before, also one that was closed. `changed` and
    `forgotten` are told the names of those of which the journal has to be written anew, or given up."""

    def __init__(self, blobs: Blobs, *, changed: Callable[[str], None], forgotten: Callable[[str], None]) -> None:
        self._blobs, self._changed, self._forgotten = blobs, changed, forgotten
        self._sessions: dict[str, Session] = {}
        self._last_edition = 0  # of those that were removed
        self._touched: set[str] = set()

    def __getitem__(self, name: str) -> Session:
        return self._sessions[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._sessions)

    def __len__(self) -> int:
        return len(self._sessions)

    def find(self, name: str) -> Session:
        """Raises UnknownSession."""
        found = self._sessions.get(name)
        if found is None:
            known = ", ".join(self._sessions) or "none"
            raise UnknownSession(f"There is no session {name!r}; there are: {known}.")
        return found

    def add(self, session: Session) -> None:
        """It stands under a new number, also where it was restored: the stop that was kept may have been edited since,
        under numbers that were shown."""
        session.last_edition = max(session.last_edition, self._last_edition)
        session.stand()
        self.take_over(session)
        self._changed(session.name)

    def take_over(self, session: Session) -> None:
        """One that stands as it stood in an earlier process, and is in the journal."""
        self._sessions[session.name] = session
        session.blobs = self._blobs

    def remove(self, session: Session) -> None:
        del self._sessions[session.name]
        self._last_edition = max(self._last_edition, session.last_edition)
        self._forgotten(session.name)

    def touch(self, session: str) -> None:
        """Its description may have changed."""
        self._touched.add(session)

    def changed(self, session: str) -> None:
        """It is not any more what the journal says of it."""
        self._changed(session)

    def take_touched(self) -> set[str]:
        """Those that were touched since the last time."""
        touched, self._touched = self._touched, set()
        return touched
