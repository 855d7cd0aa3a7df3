"""A session's memory on the device: its pages, and every tensor of its stops, states and logits. Reads only."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from torch import Tensor

from djinn_jupyter.engine.memory.kv.geometry import LayerState
from djinn_jupyter.engine.memory.kv.slab import Page
from djinn_jupyter.engine.memory.offload.swappable import Item, Storage, StorageTable
from djinn_jupyter.engine.passes.frame import Frame, States
from djinn_jupyter.engine.session.history import StopRecord
from djinn_jupyter.engine.session.residence import SessionStorages
from djinn_jupyter.engine.session.session import Session
from djinn_jupyter.engine.system.arrays import tensors_within


def pages_of(session: Session) -> Iterator[Page]:
    for group in session.cache.groups:
        for number in group.table.pages:
            yield group.slab.page(number)


def storages_of(session: Session, storage_table: StorageTable) -> SessionStorages:
    """Return the session's storages; those that passes write in place are marked with its present version."""
    here = session.residence
    if here.storages_known is None or here.storages_known[0] != here.version or session.work is not None:
        here.storages_known = (here.version, _found(session, storage_table))
    known = here.storages_known[1]
    return SessionStorages(own=_living(known.own), past=_living(known.past))


def all_storages_of(session: Session, storage_table: StorageTable) -> list[Storage]:
    """Return all storages of the session."""
    found = storages_of(session, storage_table)
    return [*found.own, *found.past]


def _found(session: Session, storage_table: StorageTable) -> SessionStorages:
    own = each_once(storage_table, own_tensors(session))
    for state in session.cache.live_states().values():
        for tensor in state.tensors():
            storage = storage_table.of(tensor)
            if storage is not None:
                storage.written_at(session.residence.version)
                own[storage.identity] = storage
    past = each_once(storage_table, past_tensors(session))
    return SessionStorages(own=list(own.values()), past=[past[identity] for identity in past if identity not in own])


def each_once(storage_table: StorageTable, tensors: Iterable[Tensor]) -> dict[int, Storage]:
    """Return the storages of tensors by identity. Each stop of a pass has the overrides of those before it, so most
    tensors come again and again; the table is asked for each once."""
    each = {id(tensor): tensor for tensor in tensors}
    found = (storage_table.of(tensor) for tensor in each.values())
    return {storage.identity: storage for storage in found if storage is not None}


def _living(storages: list[Storage]) -> list[Storage]:
    return [storage for storage in storages if not storage.expired]


@dataclass(frozen=True, slots=True, kw_only=True)
class Footprint:
    """Bytes of a session by place: on the device, those of them with no copy elsewhere (`dirty`), and copies."""

    device: int = 0
    dirty: int = 0
    host: int = 0
    disk: int = 0

    @classmethod
    def count(cls, session: Session, storage_table: StorageTable) -> Footprint:
        device = dirty = host = disk = 0
        for item in items_of(session, storage_table):
            size, copies = item.nbytes, item.copies
            if item.resident:
                device += size
                dirty += 0 if copies else size
            host += size if "host" in copies else 0
            disk += size if "disk" in copies else 0
        return cls(device=device, dirty=dirty, host=host, disk=disk)


def items_of(session: Session, storage_table: StorageTable) -> list[Item]:
    """Return all storages and pages of a session. Pages last: where there is room, their slab grows by more than it was
    asked for."""
    return [*all_storages_of(session, storage_table), *pages_of(session)]


def own_items_of(session: Session, storage_table: StorageTable) -> list[Item]:
    """Return the storages and pages that must be on the device before the session is used."""
    return [*storages_of(session, storage_table).own, *pages_of(session)]


def own_tensors(session: Session) -> Iterator[Tensor]:
    """Yield the tensors of the present stop, and those the next pass starts from and no pass writes in place."""
    if session.logits_1V is not None:
        yield session.logits_1V
    yield from _of_states(session.saved_states.values())
    here = session.history.here
    if here is not None:
        yield from tensors_of_stop(here)
    if session.frame is not None:
        yield from tensors_of_frame(session.frame)
    if session.needs_recompute:
        yield from _of_pass_log(session)


def past_tensors(session: Session) -> Iterator[Tensor]:
    """Yield the tensors of all stops, the oldest first, then those that generations and passes kept on the way."""
    for stop in session.history.stops:
        yield from tensors_of_stop(stop)
    for generation in session.generations:
        for kept in generation.states.values():
            yield from _of_states(kept.values())
    yield from _of_pass_log(session)


def tensors_of_stop(stop: StopRecord) -> Iterator[Tensor]:
    """Yield the tensors that going back to the stop reads."""
    yield stop.generator
    yield from tensors_of_frame(stop.frame)
    if stop.left_as is not None:
        yield from tensors_of_frame(stop.left_as)


def tensors_of_frame(frame: Frame) -> Iterator[Tensor]:
    if frame.hidden is not None:
        yield frame.hidden
    if frame.raw is not None:
        yield frame.raw
    if frame.attended is not None:
        yield from tensors_within(frame.attended)
    if frame.shared:
        yield from tensors_within(frame.shared)
    for override in frame.overrides:
        yield override.raw
    for states in (frame.states, frame.start_states):
        if states:
            yield from tensors_of_states(states)


def tensors_of_states(states: States) -> Iterator[Tensor]:
    return _of_states(states.values())


def _of_pass_log(session: Session) -> Iterator[Tensor]:
    for passes in session.pass_log.passes:
        if passes.entry is not None:
            yield from tensors_of_frame(passes.entry)


def _of_states(states: Iterable[LayerState]) -> Iterator[Tensor]:
    for state in states:
        yield from state.tensors()
