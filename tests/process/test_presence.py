"""The presence of persons: all who are admitted or were heard are listed, with their clients and their last message."""

from __future__ import annotations

from djinn_jupyter.remote.engine.persons import Presence
from djinn_jupyter.wire.nouns import PersonMemory
from djinn_jupyter.wire.people import People, PersonDescription


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def memory(person: str | None, size: int = 0) -> PersonMemory:
    return PersonMemory(person=person, device_bytes=size, host_bytes=0, disk_bytes=0)


def test_all_who_are_admitted_or_were_heard_are_listed_in_order() -> None:
    clock = Clock()
    presence = Presence(lambda: ("carl", "anna"), clock)
    presence.heard(None)
    clock.now = 130.0
    presence.heard("bert")  # whose key was revoked since
    clock.now = 140.0
    holding = PersonDescription(memory=memory("anna", 7), sessions=2, running=1)
    told = presence.added_to(People(people=(holding,)), ["bert", "anna", "bert"])
    assert [(one.person, one.sessions, one.notebooks, one.seen_seconds) for one in told.people] == [
        (None, 0, 0, 40.0),
        ("anna", 2, 1, None),
        ("bert", 0, 2, 10.0),
        ("carl", 0, 0, None),
    ]
    assert told.people[1].memory.device_bytes == 7
