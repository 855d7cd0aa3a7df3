"""The list of persons: the sessions, memory, checkpoints and running time of each. Reads only."""

from __future__ import annotations

from djinn_jupyter.engine.memory.offload.storages import StorageTable
from djinn_jupyter.engine.persistence.persistence import Persistence
from djinn_jupyter.engine.requests.handles import handles
from djinn_jupyter.engine.residency.residency import Residency
from djinn_jupyter.engine.scheduling.mailbox import Holder
from djinn_jupyter.engine.scheduling.running_time import RunningTime
from djinn_jupyter.engine.session.holdings import Holdings, by_person, memory
from djinn_jupyter.engine.session.table import SessionTable
from djinn_jupyter.wire import requests as ask
from djinn_jupyter.wire.naming import person_of
from djinn_jupyter.wire.people import People, PersonDescription


class PeopleRequests:
    def __init__(
        self,
        sessions: SessionTable,
        storage_table: StorageTable,
        persistence: Persistence,
        residency: Residency,
        running_time: RunningTime,
    ) -> None:
        self._sessions, self._storage_table, self._residency = sessions, storage_table, residency
        self._persistence, self._running_time = persistence, running_time

    @handles(ask.ReadPeople)
    def read_people(self, request: ask.ReadPeople, holder: Holder) -> People:
        held = by_person(self._sessions.values(), self._storage_table)
        saved = self._persistence.checkpoints.bytes_by_person()
        known = {None, *held, *saved, *self._running_time.persons}
        persons = sorted(known, key=lambda one: one or "")
        return People(
            people=tuple(self._describe(one, held.get(one, Holdings()), saved.get(one, 0)) for one in persons)
        )

    def _describe(self, person: str | None, held: Holdings, saved: int) -> PersonDescription:
        own = [session for session in self._sessions.values() if person_of(session.name) == person]
        return PersonDescription(
            memory=memory(person, held, self._residency.quotas.added(person)),
            sessions=len(own),
            running=sum(session.state == "running" for session in own),
            checkpoint_bytes=saved,
            running_seconds=self._running_time.seconds(person),
            quota=self._residency.quotas.of(person),
        )
