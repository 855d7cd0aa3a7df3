"""The memory of each person: whatever persons do, the sums over them are what the engine holds."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from djinn_jupyter.engine.session.holdings import Holdings, by_person, holdings_of, memory_of_persons
from djinn_jupyter.wire import requests as ask
from djinn_jupyter.wire.naming import person_of
from djinn_jupyter.wire.replies import Finished, Opened, Paused
from tests.engine.desk import Desk, build_desk, tokens
from tests.engine.requests.house import House
from tests.families import build

PERSONS: Final = ("anna", "bert", None)
PROMPT: Final = tokens(40, seed=3)
DEEDS: Final = ("run", "stop", "fork", "fork of another's", "to host", "to disk", "back", "close")
Deed = tuple[str | None, str]


@pytest.fixture(scope="module")
def house() -> Iterator[House]:
    desk = build_desk(build("llama"))
    made = House(desk)
    made.greet(None, "root's")
    yield made
    desk.close_all()


def do(house: House, person: str | None, deed: str) -> None:
    """Carry out a deed; one that cannot be done now is refused."""
    made, of_person = house.desk.engine.sessions, f"{person}@" if person else ""
    if f"{of_person}main" not in made:
        assert isinstance(house.ask(person, ask.Open(session="main")), Opened)
    fork = f"fork {len(made)}"
    match deed:
        case "run":
            house.ask(person, ask.ClearBreakpoints(session="main"))
            assert isinstance(run(house, person), Finished)
        case "stop":
            house.ask(person, ask.SetBreakpoint(session="main", site="resid_post.3"))
            assert isinstance(run(house, person), Paused)
        case "fork":
            house.ask(person, ask.Fork(session="main", name=fork))
        case "fork of another's" if person in ("anna", "bert"):
            other = "bert" if person == "anna" else "anna"
            house.ask(other, ask.Open(session="main"))
            house.ask(other, ask.Share(session="main", person=person, access="read"))
            assert isinstance(house.ask(person, ask.Fork(session=f"{other}@main", name=fork)), Opened)
        case "to host" | "to disk":
            house.ask(person, ask.SwapOut(session="main", tier=deed.removeprefix("to ")))
        case "back":
            house.ask(person, ask.SwapIn(session="main"))
        case "close":
            house.ask(person, ask.Close(session="main", force=True))


def run(house: House, person: str | None) -> Any:
    return house.ask(person, ask.Run(session="main", tokens=PROMPT, max_new_tokens=2, ignore_eos=True))


def held_by_the_engine(desk: Desk) -> Holdings:
    """The bytes of all pages and storages that exist."""
    table = desk.engine.storage_table
    table.purge()
    every = Holdings()
    for item in (*(page for slab in desk.engine.slabs for page in slab), *table):
        every.count(item)
    return every


@settings(max_examples=25, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(PERSONS), st.sampled_from(DEEDS)), max_size=12))
def test_the_sums_over_persons_are_what_the_engine_holds(house: House, deeds: list[Deed]) -> None:
    desk = house.desk
    for person, deed in deeds:
        do(house, person, deed)
        desk.settle()
        found = by_person(desk.engine.sessions.values(), desk.engine.storage_table)
        sums = Holdings()
        for held in found.values():
            sums.device, sums.host, sums.disk = sums.device + held.device, sums.host + held.host, sums.disk + held.disk
        assert sums == held_by_the_engine(desk)
        for one, held in found.items():
            own = [session for session in desk.engine.sessions.values() if person_of(session.name) == one]
            alone = holdings_of(own, desk.engine.storage_table)
            assert held.device <= alone.device <= sum(desk.describe(session.name).device_bytes for session in own)
    desk.close(*desk.engine.sessions)
    desk.settle()


def test_a_fork_of_ones_own_counts_once_and_one_of_anothers_is_its_owners(house: House) -> None:
    desk = house.desk
    do(house, "bert", "stop")
    before = people(desk)
    do(house, "bert", "fork")
    assert people(desk)["bert"].device == before["bert"].device
    do(house, "anna", "fork of another's")
    after = people(desk)
    assert after["bert"] == before["bert"]
    assert after["anna"].device == 0
    house.ask("bert", ask.Close(session="main", force=True))
    house.ask("bert", ask.Close(session="fork 1", force=True))
    desk.settle()
    assert people(desk)["anna"].device == before["bert"].device
    desk.close(*desk.engine.sessions)


def people(desk: Desk) -> dict[str | None, Holdings]:
    desk.engine.storage_table.purge()
    return by_person(desk.engine.sessions.values(), desk.engine.storage_table)


def test_where_all_sessions_are_the_engines_own_users_no_one_is_counted(house: House) -> None:
    desk = house.desk
    do(house, None, "run")
    assert memory_of_persons(desk.engine.sessions.values(), desk.engine.storage_table) == ()
    do(house, "anna", "run")
    listed = memory_of_persons(desk.engine.sessions.values(), desk.engine.storage_table)
    assert [one.person for one in listed] == [None, "anna"]
    desk.close(*desk.engine.sessions)
