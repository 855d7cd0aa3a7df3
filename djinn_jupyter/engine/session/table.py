"""The sessions of an engine by name, which of them changed, and whose they are; the memory that each has, and each
person's sessions together; the time that the engine has worked for each person."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from torch import Tensor

from djinn_jupyter.engine.memory.kv.geometry import LayerState
from djinn_jupyter.engine.memory.kv.slab import Page
from djinn_jupyter.engine.memory.offload.swappable import Item, Storage, StorageTable
from djinn_jupyter.engine.passes.frame import Frame
from djinn_jupyter.engine.session.history import StopRecord
from djinn_jupyter.engine.session.residence import SessionStorages
from djinn_jupyter.engine.session.session import Session, given_arrays, recorded
from djinn_jupyter.engine.system.arrays import tensors_within
from djinn_jupyter.errors import UnknownSession
from djinn_jupyter.wire.base import known_to_the_same, person_of
from djinn_jupyter.wire.nouns import PersonMemory
from djinn_jupyter.wire.texts import NOTEBOOK, few_of, in_quotes, notebook_shown, shown


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
    tensors occur again and again; the table is asked for each once."""
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
    """Return all storages and pages of a session. Pages last: with room their slab grows by more than requested."""
    return [*all_storages_of(session, storage_table), *pages_of(session)]


def own_items_of(session: Session, storage_table: StorageTable) -> list[Item]:
    """Return the storages and pages that must be on the device before the session is used."""
    return [*storages_of(session, storage_table).own, *pages_of(session)]


def own_tensors(session: Session) -> Iterator[Tensor]:
    """Yield the tensors of the present stop, and those the next pass starts from and no pass writes in place."""
    if session.logits_1V is not None:
        yield session.logits_1V
    yield from tensors_of_states(session.saved_states)
    here = session.history.here
    if here is not None:
        yield from tensors_of_stop(here)
    if session.frame is not None:
        yield from tensors_of_frame(session.frame)
    if session.needs_recompute:
        yield from _of_pass_log(session)


def past_tensors(session: Session) -> Iterator[Tensor]:
    """Yield the tensors of all stops, the oldest first, then those kept by generations and passes."""
    for stop in session.history.stops:
        yield from tensors_of_stop(stop)
    for generation in session.generations:
        for kept in generation.states.values():
            yield from tensors_of_states(kept)
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


def _of_pass_log(session: Session) -> Iterator[Tensor]:
    for passes in session.pass_log.passes:
        if passes.entry is not None:
            yield from tensors_of_frame(passes.entry)


def tensors_of_states(states: Mapping[int, LayerState]) -> Iterator[Tensor]:
    for state in states.values():
        yield from state.tensors()


class SessionTable(Mapping[str, Session]):
    """A session in it has a stop number that no session of its name had before, including closed ones. `changed` gets
    the name of each session whose journal must be written, `forgotten` of each whose journal is deleted."""

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
        session.number_stop()
        self.take_over(session)
        self.changed(session.name)

    def take_over(self, session: Session) -> None:
        """Add a session in its state from an earlier process; it is in the journal already."""
        self._sessions[session.name] = session
        session.storage_table = self._storage_table

    def remove(self, session: Session) -> None:
        del self._sessions[session.name]
        self._last_edition = max(self._last_edition, session.last_edition)
        self._forgotten(session.name)
        for let_go in self._on_removal:
            let_go(session)

    def on_removal(self, let_go: Callable[[Session], None]) -> None:
        """Call this with each removed session, for a part that keeps something for it."""
        self._on_removal.append(let_go)

    def touch(self, session: str) -> None:
        """Record that the session's description may have changed."""
        self._touched.add(session)

    def changed(self, session: str) -> None:
        """Report that the session differs from its journal; a temporary one is in none."""
        if not (session in self and self[session].temporary):
            self._changed(session)

    def take_touched(self) -> set[str]:
        """Return the names touched since the last call."""
        touched, self._touched = self._touched, set()
        return touched


# Ownership of sessions: which notebook a session belongs to, and the refusal of deeds reserved to that notebook. One
# rule for every client. A session belongs to the notebook of the kernel that has it open, or to a process without a
# notebook that has it open; one that an engine recovered belongs to the notebook that it is named after, until that
# opens it. A session that no client has open, and that was not recovered, has no owner. Knows no requests.


def whose(session: Session) -> str:
    """Name its owner: a notebook, with its folder, or a kernel or process; also who else has it open."""
    said = []
    if session.notebook is not None and session.notebook != session.holder_notebook:
        said.append(f"belongs to the notebook {notebook_shown(session.notebook)}")
    if session.holder_notebook is not None:
        said.append(f"is open in the notebook {notebook_shown(session.holder_notebook)}")
    elif session.holder is not None:
        said.append(f"is open in another kernel ({shown(session.holder)})")
    return " and ".join(said)


def refusal(session: Session, label: str, deed: str) -> str:
    """Return the sentence that refuses `deed` to others; `label` is the session's displayed name."""
    return (
        f"Session {in_quotes(label)} {whose(session)}; to {deed} all the same, add --force "
        "(in Python force=True), or work on a fork of it (%djinn_fork)."
    )


def named_notebook(name: str) -> str | None:
    """Return the notebook that a session is named after, if any."""
    return name if name.endswith(NOTEBOOK) else None


# The memory that each person's sessions hold. Reads only. An item that several sessions share counts once, for the
# person of the oldest of them, as a kernel charges a shared page to the process that touched it first: the sums over
# persons equal what all sessions hold together, and each person pays only for their own sessions.


@dataclass(slots=True)
class Holdings:
    """Bytes of items: those on the device, and their copies; on the `host` also recorded values. `given` are those of
    arrays that passes copy to the device, `reserved` those that work holds there besides its session's own."""

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


DAY_SECONDS: Final = 24 * 3600.0
STEP_SECONDS: Final = 600.0  # so much time is one number, and is forgotten together
WorkedSteps = list[tuple[int, float]]


class RunningTime:
    """Seconds of the engine's thread by person within the last day, None being the engine's own user. `clock` is
    monotonic; `now` is the time of day, with which the next engine goes on. `counted_seconds` are all that were counted
    or taken over here, `worked` those of each person that were counted here; it may be read from any thread."""

    def __init__(self, clock: Callable[[], float] = time.monotonic, now: Callable[[], float] = time.time) -> None:
        self._clock, self._now = clock, now
        self._steps: defaultdict[str | None, dict[int, float]] = defaultdict(dict)
        self._worked: dict[str | None, float] = {}
        self.counted_seconds = 0.0

    @property
    def persons(self) -> tuple[str | None, ...]:
        """The persons for whom the engine has worked."""
        return tuple(self._steps)

    @property
    def worked(self) -> Mapping[str | None, float]:
        """The seconds of each person since this engine's start, in order of their first work."""
        return self._worked.copy()

    @contextmanager
    def counted(self, person: str | None) -> Iterator[None]:
        """Count the time that passes within for a person."""
        begun = self._clock()
        try:
            yield
        finally:
            self.add(person, self._clock() - begun)

    def add(self, person: str | None, seconds: float) -> None:
        self._count(person, self._step(), seconds)
        self._worked[person] = self._worked.get(person, 0.0) + seconds

    def seconds(self, person: str | None) -> float:
        """Return the seconds within the last day."""
        steps = self._steps.get(person, {})
        for old in [step for step in steps if step <= self._oldest()]:
            del steps[old]
        return sum(steps.values())

    def steps(self) -> Mapping[str | None, WorkedSteps]:
        """Return the seconds of each person within the last day, by step."""
        return {person: sorted(self._steps[person].items()) for person in self._steps if self.seconds(person)}

    def take_over(self, person: str | None, steps: Iterable[tuple[int, float]]) -> None:
        """Count what an earlier engine has worked for a person within the last day."""
        for step, seconds in steps:
            if self._oldest() < step <= self._step() and seconds > 0:
                self._count(person, step, seconds)

    def _count(self, person: str | None, step: int, seconds: float) -> None:
        steps = self._steps[person]
        steps[step] = steps.get(step, 0.0) + seconds
        self.counted_seconds += seconds

    def _oldest(self) -> float:
        """Return the step of a day ago."""
        return self._step() - DAY_SECONDS / STEP_SECONDS

    def _step(self) -> int:
        return int(self._now() // STEP_SECONDS)
