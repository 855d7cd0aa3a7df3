"""The memory that each person's sessions hold. Reads only.

An item that several sessions share counts once, for the person of the oldest of them, as a kernel charges a shared page
to the process that touched it first: the sums over persons are what all sessions hold together, and no one is charged
for more than their own sessions have.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from djinn_jupyter.engine.memory.offload.storages import StorageTable
from djinn_jupyter.engine.memory.offload.swappable import Item
from djinn_jupyter.engine.session.footprint import items_of
from djinn_jupyter.engine.session.given_arrays import given_arrays, recorded
from djinn_jupyter.engine.session.session import Session
from djinn_jupyter.wire.holdings import PersonMemory
from djinn_jupyter.wire.naming import person_of


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
