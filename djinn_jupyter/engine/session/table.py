"""The sessions of an engine by name, and which of them changed: for the journal, and for clients that show them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

from djinn_jupyter.engine.memory.offload.swappable import Item, StorageTable
from djinn_jupyter.engine.session.footprint import items_of
from djinn_jupyter.engine.session.session import Session, given_arrays, recorded
from djinn_jupyter.errors import UnknownSession
from djinn_jupyter.wire.base import known_to_the_same, person_of
from djinn_jupyter.wire.nouns import PersonMemory
from djinn_jupyter.wire.texts import NOTEBOOK, few_of, in_quotes, notebook_shown, shown


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


# Ownership of sessions: which notebook a session belongs to, and the refusal of what only that notebook may do. One
# rule for every client. A session belongs to the notebook of the kernel that has it open, or to a process without a
# notebook that has it open; one that an engine recovered belongs to the notebook that it is named after, until that
# opens it. A session that no client has open, and that was not recovered, has no owner. Knows no requests.


class Owned(Protocol):
    """A session, or the description of one: its holder, None when detached, and the notebook that it belongs to."""

    @property
    def holder(self) -> str | None: ...
    @property
    def notebook(self) -> str | None: ...


class HeldSession(Owned, Protocol):
    """A session that also knows the notebook of its holder, which may have entered a session of another notebook."""

    @property
    def holder_notebook(self) -> str | None: ...


def is_anothers(session: Owned, holder: str, notebook: str | None) -> bool:
    """Return whether it belongs to another than the kernel or process `holder`, which speaks for that notebook."""
    if session.notebook is not None:
        return session.notebook != notebook
    return session.holder not in (None, holder)


def whose(session: HeldSession) -> str:
    """Say whose it is: a notebook's, named with its folder, or that of a kernel or process without one; where another
    than the owner has it open, both."""
    said = []
    if session.notebook is not None and session.notebook != session.holder_notebook:
        said.append(f"belongs to the notebook {notebook_shown(session.notebook)}")
    if session.holder_notebook is not None:
        said.append(f"is open in the notebook {notebook_shown(session.holder_notebook)}")
    elif session.holder is not None:
        said.append(f"is open in another kernel ({shown(session.holder)})")
    return " and ".join(said)


def refusal(session: HeldSession, label: str, deed: str) -> str:
    """Return the sentence that refuses `deed` to others; `label` is the session's name as it is shown."""
    return (
        f"Session {in_quotes(label)} {whose(session)}; to {deed} all the same, add --force "
        "(in Python force=True), or work on a fork of it (%djinn_fork)."
    )


def named_notebook(name: str) -> str | None:
    """Return the notebook that a session is named after, if any."""
    return name if name.endswith(NOTEBOOK) else None


# The memory that each person's sessions hold. Reads only. An item that several sessions share counts once, for the
# person of the oldest of them, as a kernel charges a shared page to the process that touched it first: the sums over
# persons are what all sessions hold together, and no one is charged for more than their own sessions have.


@dataclass(slots=True)
class Holdings:
    """Bytes of items: those that take room on the device, and their copies; on the `host` also of what was recorded
    there. `given` are those of arrays that passes take to the device, `reserved` those that work holds there beside
    its session's own."""

    device: int = 0
    host: int = 0
    disk: int = 0
    given: int = 0
    reserved: int = 0

    @property
    def on_device(self) -> int:
        """All that counts for the device."""
        return self.device + self.given + self.reserved

    def count(self, item: Item) -> None:
        size, copies = item.nbytes, item.copies
        self.device += size if item.placed else 0
        self.host += size if "host" in copies else 0
        self.disk += size if "disk" in copies else 0


def holdings_of(sessions: Iterable[Session], storage_table: StorageTable) -> Holdings:
    """Return what these sessions hold, each item once."""
    return sum_of(by_person(sessions, storage_table).values())


def sum_of(held: Iterable[Holdings]) -> Holdings:
    """Return all of these together."""
    held = tuple(held)
    return Holdings(
        device=sum(one.device for one in held),
        host=sum(one.host for one in held),
        disk=sum(one.disk for one in held),
        given=sum(one.given for one in held),
        reserved=sum(one.reserved for one in held),
    )


def by_person(sessions: Iterable[Session], storage_table: StorageTable) -> dict[str | None, Holdings]:
    """Return what each person's sessions hold, None being the engine's own user; the oldest sessions come first."""
    found: dict[str | None, Holdings] = {}
    counted: set[int] = set()
    for session in sessions:
        held = found.setdefault(person_of(session.name), Holdings())
        for item in items_of(session, storage_table):
            if id(item) not in counted:
                counted.add(id(item))
                held.count(item)
        for array in given_arrays(session):
            if id(array) not in counted:
                counted.add(id(array))
                held.given += array.nbytes
        for kept, size in recorded(session):
            if id(kept) not in counted:
                counted.add(id(kept))
                held.host += size
        held.reserved += session.residence.reserved
    return found


def memory_of_persons(
    sessions: Iterable[Session], storage_table: StorageTable, added: Callable[[str | None], int] = lambda person: 0
) -> tuple[PersonMemory, ...]:
    """Return the memory of each, with the modules and adapters that each has `added`, the engine's own user first;
    nothing where all sessions are that user's."""
    sessions = tuple(sessions)
    if all(person_of(session.name) is None for session in sessions):
        return ()
    held = {None: Holdings(), **by_person(sessions, storage_table)}
    return tuple(memory(person, held[person], added(person)) for person in sorted(held, key=lambda one: one or ""))


def memory(person: str | None, held: Holdings, added: int) -> PersonMemory:
    return PersonMemory(person=person, device_bytes=held.on_device + added, host_bytes=held.host, disk_bytes=held.disk)
