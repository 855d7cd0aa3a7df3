"""The sessions of an engine by name, and which of them changed: for the journal, and for clients that show them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from djinn_jupyter.engine.memory.offload.storages import StorageTable
from djinn_jupyter.engine.session.session import Session
from djinn_jupyter.errors import UnknownSession
from djinn_jupyter.wire.naming import known_to_the_same
from djinn_jupyter.wire.texts import few_of, in_quotes


class SessionTable(Mapping[str, Session]):
    """A session in it has a stop number that no session of its name had before, closed ones included. `changed` gets
    the name of each session whose journal must be written anew, `forgotten` of each whose journal is given up."""

    def __init__(
        self, storage_table: StorageTable, *, changed: Callable[[str], None], forgotten: Callable[[str], None]
    ) -> None:
        self._storage_table, self._changed, self._forgotten = storage_table, changed, forgotten
        self._sessions: dict[str, Session] = {}
        self._last_edition = 0  # of the removed sessions
        self._touched: set[str] = set()
        self._on_removal: list[Callable[[Session], None]] = []

    def __getitem__(self, name: str) -> Session:
        return self._sessions[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._sessions)

    def __len__(self) -> int:
        return len(self._sessions)

    def find(self, name: str) -> Session:
        """Return the session of that name. Raises UnknownSession."""
        found = self._sessions.get(name)
        if found is None:
            known = few_of(known_to_the_same(name, self._sessions), name)
            raise UnknownSession(f"There is no session {in_quotes(name)}, or no longer; there are: {known}.")
        return found

    def add(self, session: Session) -> None:
        """Add a session under a new stop number, also a restored one: the kept stop may have been edited since, under
        numbers that clients have seen."""
        session.last_edition = max(session.last_edition, self._last_edition)  # of a closed session of its name
        session.stand()
        self.take_over(session)
        self.changed(session.name)

    def take_over(self, session: Session) -> None:
        """Add a session as it stood in an earlier process; it is in the journal already."""
        self._sessions[session.name] = session
        session.storage_table = self._storage_table

    def remove(self, session: Session) -> None:
        del self._sessions[session.name]
        self._last_edition = max(self._last_edition, session.last_edition)
        self._forgotten(session.name)
        for let_go in self._on_removal:
            let_go(session)

    def on_removal(self, let_go: Callable[[Session], None]) -> None:
        """Have this called with each session that is removed, by a part that keeps something for it."""
        self._on_removal.append(let_go)

    def touch(self, session: str) -> None:
        """Note that the session's description may have changed."""
        self._touched.add(session)

    def changed(self, session: str) -> None:
        """Report that the session differs from its journal; a temporary one is in none."""
        if not (session in self and self[session].temporary):
            self._changed(session)

    def take_touched(self) -> set[str]:
        """Return the names touched since the last call."""
        touched, self._touched = self._touched, set()
        return touched
