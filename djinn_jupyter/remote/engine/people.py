"""The list of persons, with the sessions, memory, checkpoints and running time of each; and the sharing of a
session."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

import msgspec

from djinn_jupyter.engine.loop.mailbox import Holder
from djinn_jupyter.engine.loop.parts import BuiltOfParts, EngineParts
from djinn_jupyter.engine.requests.handlers import handles
from djinn_jupyter.engine.session import reports
from djinn_jupyter.engine.session.session import Session
from djinn_jupyter.engine.session.table import Holdings, by_person, memory
from djinn_jupyter.errors import UsageError
from djinn_jupyter.wire import requests as ask
from djinn_jupyter.wire.base import person_of
from djinn_jupyter.wire.nouns import PersonMemory, SessionDescription
from djinn_jupyter.wire.people import NO_QUOTA, People, PersonDescription
from djinn_jupyter.wire.sessions import Described
from djinn_jupyter.wire.texts import in_quotes, label


class PeopleRequests(BuiltOfParts):
    def __init__(self, parts: EngineParts) -> None:
        super().__init__(parts)
        self._running_time = parts.running_time

    @handles(ask.ReadPeople)
    def read_people(self, request: ask.ReadPeople, holder: Holder) -> People:
        held = by_person(self._sessions.values(), self._storage_table)
        saved = self._persistence.checkpoints.bytes_by_person()
        known = {None, *held, *saved, *self._running_time.persons}
        persons = sorted(known, key=lambda one: one or "")
        return People(
            people=tuple(self._describe(one, held.get(one, Holdings()), saved.get(one, 0)) for one in persons)
        )

    @handles(ask.Share)
    def share(self, request: ask.Share, session: Session, holder: Holder) -> Described:
        """Let another person read or change a person's session from now on, or end that."""
        owner = person_of(session.name)
        if owner is None:
            raise UsageError(
                f"Session {in_quotes(label(session.name))} is of the engine's own user, and others could not name it: "
                "load the engine by a key of your own to share sessions."
            )
        if owner == request.person:
            raise UsageError(f"Session {in_quotes(label(session.name))} is {owner}'s own; share it with another.")
        session.shares.grant(request.person, request.access)
        return Described(session=reports.describe(session))

    def _describe(self, person: str | None, held: Holdings, saved: int) -> PersonDescription:
        own = [session for session in self._sessions.values() if person_of(session.name) == person]
        return PersonDescription(
            memory=memory(person, held, self._residency.owner_budgets.added(person)),
            sessions=len(own),
            running=sum(session.state == "running" for session in own),
            checkpoint_bytes=saved,
            running_seconds=self._running_time.seconds(person),
            quota=NO_QUOTA.but(msgspec.structs.asdict(self._residency.owner_budgets.of(person))),
        )


# Metrics by person. Each value of a label is a series that Prometheus keeps: the MOST_PERSONS with the most have their
# own, the rest share one.

MOST_PERSONS: Final = 50
OWN_USER: Final = "engine's user"  # no name of a person has an apostrophe or a space
OTHERS: Final = "all others"
Samples = Iterable[tuple[tuple[str, ...], float | None]]


def session_samples(sessions: Iterable[SessionDescription]) -> Samples:
    """Return the sessions of each person, by state."""
    found = Counter((_label(person_of(one.name)), one.state) for one in sessions)
    by_person = Counter[str]()
    for (person, _), count in found.items():
        by_person[person] += count
    named = _largest(by_person)
    return _summed(((person if person in named else OTHERS, state), count) for (person, state), count in found.items())


def memory_samples(people: Iterable[PersonMemory], sessions: Iterable[SessionDescription]) -> Samples:
    """Return the bytes of each person on device, host and disk; `people` is empty where everything belongs to the
    engine's own user."""
    told = {_label(one.person): _sizes(one.device_bytes, one.host_bytes, one.disk_bytes) for one in people}
    if not told:
        every = tuple(sessions)
        told[OWN_USER] = _sizes(
            sum(one.device_bytes for one in every),
            sum(one.host_bytes for one in every),
            sum(one.disk_bytes for one in every),
        )
    named = _largest({person: sum(sizes.values()) for person, sizes in told.items()})
    return _summed(
        ((person if person in named else OTHERS, tier), size)
        for person, sizes in told.items()
        for tier, size in sizes.items()
    )


def time_samples(worked: Mapping[str | None, float]) -> Samples:
    """Return the engine's working seconds for each person. The first MOST_PERSONS keep a series of their own: a move to
    another series would make both sums fall and rise."""
    named = {OWN_USER, *[_label(person) for person in worked if person is not None][:MOST_PERSONS]}
    labelled = ((_label(person), seconds) for person, seconds in worked.items())
    return _summed(((person if person in named else OTHERS,), seconds) for person, seconds in labelled)


def _sizes(device: int, host: int, disk: int) -> dict[str, int]:
    return {"device": device, "host": host, "disk": disk}


def _label(person: str | None) -> str:
    return OWN_USER if person is None else person


def _largest(sizes: Mapping[str, int]) -> set[str]:
    ordered = sorted(sizes, key=lambda person: (-sizes[person], person))
    return {OWN_USER, *[person for person in ordered if person != OWN_USER][:MOST_PERSONS]}


def _summed(samples: Iterable[tuple[tuple[str, ...], float]]) -> Iterator[tuple[tuple[str, ...], float]]:
    sums: dict[tuple[str, ...], float] = {}
    for labels, count in samples:
        sums[labels] = sums.get(labels, 0) + count
    yield from sorted(sums.items())
