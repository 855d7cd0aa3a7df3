"""The list of persons: all of it for the engine's own user, and of others their memory alone for a person."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import pytest

from djinn_jupyter.wire import protocol
from djinn_jupyter.wire import requests as ask
from djinn_jupyter.wire.people import PersonDescription
from djinn_jupyter.wire.replies import Finished, Opened
from tests.engine.desk import build_desk, tokens
from tests.engine.requests.house import House
from tests.families import build

PROMPT: Final = tokens(9, seed=4)


@pytest.fixture(scope="module")
def house() -> Iterator[House]:
    desk = build_desk(build("llama"))
    made = House(desk)
    made.ask(None, protocol.hello(holder="k", user="root"))
    for person, sessions in (("anna", 1), ("bert", 2)):
        for number in range(sessions):
            assert isinstance(made.ask(person, ask.Open(session=f"s{number}")), Opened)
            ran = made.ask(person, ask.Run(session=f"s{number}", tokens=PROMPT, max_new_tokens=2, ignore_eos=True))
            assert isinstance(ran, Finished)
        made.ask(person, ask.SaveCheckpoint(session="s0", name="kept", replace=True))
    yield made
    for person in ("anna", "bert"):
        made.ask(person, ask.DropCheckpoint(name="kept"))
    desk.close_all()


def people(house: House, person: str | None) -> dict[str | None, PersonDescription]:
    told = house.ask(person, ask.ReadPeople())
    return {one.person: one for one in told.people}


def test_the_engines_user_reads_all_of_everyone(house: House) -> None:
    found = people(house, None)
    assert list(found) == [None, "anna", "bert"]
    assert [one.sessions for one in found.values()] == [0, 1, 2]
    bert = found["bert"]
    assert bert.running == 0
    assert bert.memory.device_bytes > found["anna"].memory.device_bytes > 0
    assert bert.running_seconds is not None
    assert bert.running_seconds > 0
    assert bert.checkpoint_bytes is not None
    assert bert.checkpoint_bytes > 0
    assert bert.notebooks == 1
    assert bert.seen_seconds is not None
    assert bert.seen_seconds >= 0


def test_a_person_reads_all_of_themselves_and_the_memory_of_others(house: House) -> None:
    found, all_of_it = people(house, "anna"), people(house, None)
    assert found["anna"].sessions == 1
    assert found["anna"].checkpoint_bytes == all_of_it["anna"].checkpoint_bytes
    assert found["bert"] == PersonDescription(memory=all_of_it["bert"].memory)
    assert found[None] == PersonDescription(memory=all_of_it[None].memory)


def test_statistics_have_the_memory_of_each(house: House) -> None:
    house.desk.engine.state_publisher._published = 0.0  # measured again by the next publication
    house.desk.engine.state_publisher.publish()
    for person in (None, "anna"):
        told = house.ask(person, ask.ReadStatistics()).statistics.people
        assert told == tuple(one.memory for one in people(house, None).values())


def test_an_idle_engine_has_the_memory_of_each_as_their_last_requests_left_it(house: House) -> None:
    def held() -> dict[str | None, int]:
        house.desk.settle()
        told = house.ask(None, ask.ReadStatistics()).statistics.people
        return {one.person: one.device_bytes for one in told}

    assert isinstance(house.ask("anna", ask.Open(session="more")), Opened)
    before = held()["anna"]
    house.ask("anna", ask.Run(session="more", tokens=PROMPT, max_new_tokens=2, ignore_eos=True))
    assert held()["anna"] > before
    house.ask("anna", ask.Close(session="more"))
    assert held()["anna"] == before
