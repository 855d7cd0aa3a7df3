"""The presence of persons: all who are admitted or were heard are listed, with their clients and their last message."""

from __future__ import annotations

from djinn_jupyter.remote.engine.persons import with_presence
from djinn_jupyter.wire.nouns import PersonMemory
from djinn_jupyter.wire.people import People, PersonDescription


def memory(person: str | None, size: int = 0) -> PersonMemory:
    return PersonMemory(person=person, device_bytes=size, host_bytes=0, disk_bytes=0)


def test_all_who_are_admitted_or_were_heard_are_listed_in_order() -> None:
    heard = {None: 100.0, "bert": 130.0}  # whose key was revoked since
    holding = PersonDescription(memory=memory("anna", 7), sessions=2, running=1)
    told = with_presence(People(people=(holding,)), ("carl", "anna"), heard, 140.0, ["bert", "anna", "bert"])
    assert [(one.person, one.sessions, one.notebooks, one.seen_seconds) for one in told.people] == [
        (None, 0, 0, 40.0),
        ("anna", 2, 1, None),
        ("bert", 0, 2, 10.0),
        ("carl", 0, 0, None),
    ]
    assert told.people[1].memory.device_bytes == 7
