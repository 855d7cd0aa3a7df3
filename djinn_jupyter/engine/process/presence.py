"""The presence of persons at an engine: how many clients of each are there, and when one was last heard."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable

import msgspec

from djinn_jupyter.wire.holdings import PersonMemory
from djinn_jupyter.wire.people import People, PersonDescription


def no_persons() -> Iterable[str]:
    """Return no names: an engine without a door admits no persons."""
    return ()


class Presence:
    """`admitted` are the names of the persons whom the engine admits now. None stands for the engine's own user."""

    def __init__(
        self, admitted: Callable[[], Iterable[str]] = no_persons, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._admitted, self._clock = admitted, clock
        self._heard: dict[str | None, float] = {}

    def heard(self, person: str | None) -> None:
        """Note that a message of a person has come. One thread calls it."""
        self._heard[person] = self._clock()

    def added_to(self, people: People, present: Iterable[str | None]) -> People:
        """Return the list with all who are admitted, and with the presence of each; `present` has the person behind
        each client that is there."""
        listed = {one.person: one for one in people.people}
        for name in {*self._heard, *self._admitted()} - listed.keys():
            listed[name] = _without_sessions(name)
        clients = Counter(present)
        ordered = sorted(listed.values(), key=lambda one: one.person or "")
        return People(people=tuple(self._described(one, clients[one.person]) for one in ordered))

    def _described(self, one: PersonDescription, notebooks: int) -> PersonDescription:
        heard = self._heard.get(one.person)
        seen = None if heard is None else max(0.0, self._clock() - heard)
        return msgspec.structs.replace(one, notebooks=notebooks, seen_seconds=seen)


def _without_sessions(person: str | None) -> PersonDescription:
    none = PersonMemory(person=person, device_bytes=0, host_bytes=0, disk_bytes=0)
    return PersonDescription(memory=none, sessions=0, running=0, checkpoint_bytes=0, running_seconds=0.0)
