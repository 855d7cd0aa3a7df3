"""The memory of each person: whatever persons do, the sums over them are what the engine holds."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from types import ModuleType
from typing import Any, Final

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from djinn_jupyter.engine.memory.kv.cache import PagedCache
from djinn_jupyter.engine.memory.offload.swappable import Storage, StorageTable
from djinn_jupyter.engine.model.hooks.taps import Tap
from djinn_jupyter.engine.passes.breakpoints import FLOAT_BYTES, Rule
from djinn_jupyter.engine.passes.forward import Forward
from djinn_jupyter.engine.session.session import POSITION_BYTES, TOKEN_BYTES, Session, given_arrays, recorded
from djinn_jupyter.engine.session.table import Holdings, by_person, holdings_of, items_of, memory_of_persons
from djinn_jupyter.errors import UsageError
from djinn_jupyter.modules.engine.arithmetic import HeldAdapter
from djinn_jupyter.wire import requests as ask
from djinn_jupyter.wire.arrays import Array
from djinn_jupyter.wire.base import person_of
from djinn_jupyter.wire.edits import Add, PatchFrom, ProjectOut
from djinn_jupyter.wire.looks import Direction
from djinn_jupyter.wire.nouns import PersonMemory, Sampling
from djinn_jupyter.wire.people import NO_QUOTA, Quota
from djinn_jupyter.wire.replies import Failed, Finished, Opened, Paused
from tests.engine.desk import Desk, array, build_desk, tokens
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
    """The bytes of all pages and storages that exist, and of what sessions recorded."""
    table = desk.engine.storage_table
    table.purge()
    every = Holdings()
    for item in (*(page for slab in desk.engine.slabs for page in slab), *table):
        every.count(item)
    kept = {id(one): size for session in desk.engine.sessions.values() for one, size in recorded(session)}
    every.host += sum(kept.values())
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


COUNTED: Final = {  # of the fields of a session: in which sum their bytes stand
    "cache": "items: pages",
    "saved_states": "items: storages",
    "frame": "items: storages",
    "logits_1V": "items: storages",
    "history": "items: storages; stops on the disk",
    "pass_log": "items: storages",
    "generation": "items: storages; recorded: states of generators",
    "rules": "given",
    "edits": "given",
    "watches": "recorded",
    "adapter": "added, for the person who added it",
}
SMALL: Final = set(  # bounded by the context, by the length of a text in a message, or by a constant
    "name owner holder state tokens exactness needs_recompute breakpoints numbers_given runs forked_from shares "
    "answered used_by holder_notebook kept_for left_by moving temporary stop edition last_edition rule_numbers_given "
    "plan_version work progress pause_requested residence storage_table last_used attention".split()
)


def test_every_field_of_a_session_is_counted_or_small() -> None:
    fields = {field.name for field in dataclasses.fields(Session)}
    assert fields == COUNTED.keys() | SMALL
    assert not COUNTED.keys() & SMALL


def test_arrays_of_rules_and_edits_and_records_of_watches_are_held_by_the_person(house: House) -> None:
    house.greet("carl", "carl's")
    assert isinstance(house.ask("carl", ask.Open(session="held")), Opened)
    vector = array(torch.randn(house.desk.engine.description.hidden_size))
    before = carl(house)
    house.ask("carl", ask.Steer(session="held", site="resid_post.1", edit=Add(vector=vector)))
    assert carl(house).device_bytes - before.device_bytes == vector.nbytes
    assert isinstance(house.ask("carl", ask.Fork(session="held", name="twin")), Opened)
    assert carl(house).device_bytes - before.device_bytes == vector.nbytes, "a fork has the same array"
    house.ask("carl", ask.Watch(session="held", site="resid_post.2"))
    house.ask("carl", ask.SetBreakpoint(session="held", site="resid_post.3"))
    stopped = house.ask("carl", ask.Run(session="held", tokens=PROMPT, max_new_tokens=2))
    assert isinstance(stopped, Paused)
    watched = house.desk.session("carl@held").watches["resid_post.2"].bytes_held
    noted = (2 * TOKEN_BYTES + POSITION_BYTES) * len(PROMPT) + FLOAT_BYTES  # of the stop and of its pass
    assert carl(house).host_bytes - before.host_bytes == watched + noted > noted
    halted = carl(house).device_bytes
    house.ask("carl", ask.ApplyEdit(session="held", edit=Add(vector=vector)))
    assert carl(house).device_bytes - halted >= vector.nbytes
    for name in ("held", "twin"):
        house.ask("carl", ask.Close(session=name, force=True))
    house.desk.settle()


OF_THE_ENGINE: Final = (PagedCache, Tap, Storage, StorageTable, HeldAdapter, Forward, nn.Module, type, ModuleType)


def everything_within(value: Any, seen: dict[int, Any]) -> dict[int, Any]:
    """All that can be reached from a session, without what is the engine's."""
    if id(value) in seen or isinstance(value, OF_THE_ENGINE) or callable(value):
        return seen
    seen[id(value)] = value
    if isinstance(value, Mapping):
        parts: list[Any] = [*value.keys(), *value.values()]
    elif isinstance(value, list | tuple | set | frozenset):
        parts = list(value)
    else:
        names = [name for one in type(value).__mro__ for name in getattr(one, "__slots__", ())]
        parts = [getattr(value, name, None) for name in (*names, *getattr(value, "__dict__", ()))]
    for part in parts if not isinstance(value, Tensor | Array) else ():
        everything_within(part, seen)
    return seen


def test_every_tensor_and_array_that_a_session_holds_is_counted() -> None:
    """Also those of rules that are gone, and the tokens of each stop."""
    desk = build_desk(build("llama"))
    desk.open("b")
    desk.stop_at("resid_post.1", name="b")
    desk.run(PROMPT, 2, "b")
    desk.open("a")
    vector = array(torch.randn(desk.engine.description.hidden_size))
    gone = desk.steer("resid_post.2", Add(vector=vector)).rule.number
    desk.steer("resid_post.0", ProjectOut(direction=vector))
    for direction in (None, Direction(name="d", vector=vector)):
        desk.ask(ask.Watch(session="a", site="resid_post.3", direction=direction))
    desk.run(PROMPT, 20, sampling=Sampling(temperature=1.0))
    desk.ask(ask.Unsteer(session="a", number=gone))
    desk.stop_at("resid_post.1")
    desk.run(tokens(3), 5, extend=True)
    desk.edit(PatchFrom(session="b", positions=(37, 38, 39)), positions=(60, 61, 62))
    desk.edit(Add(vector=vector))
    desk.resume()
    desk.run(PROMPT, 3)
    desk.ask(ask.Fork(session="a", name="c"))
    for name in "ac":
        uncounted(desk, desk.session(name))
    desk.close_all()


def uncounted(desk: Desk, session: Session) -> None:
    """Assert that whatever the session holds is in one of the sums."""
    table = desk.engine.storage_table
    items = {item.identity for item in items_of(session, table) if isinstance(item, Storage)}
    within = everything_within(session, {}).values()
    copies = [copy for rule in within if isinstance(rule, Rule) for copy in rule.copies]
    items |= {one.identity for one in map(table.known, copies) if one is not None}
    kept = [*given_arrays(session), *(one for one, _ in recorded(session) if not isinstance(one, Rule))]
    counted = {identity for one in kept for identity in everything_within(one, {})}
    for value in within:
        if isinstance(value, Tensor):
            storage = table.known(value)
            assert (storage is not None and storage.identity in items) or id(value) in counted, value.shape
        elif isinstance(value, Array) or (isinstance(value, tuple) and len(value) >= len(PROMPT)):
            assert id(value) in counted, value


def carl(house: House) -> PersonMemory:
    told = memory_of_persons(house.desk.engine.sessions.values(), house.desk.engine.storage_table)
    return next(one for one in told if one.person == "carl")


def test_arrays_beyond_a_quota_or_the_memory_of_all_sessions_are_refused() -> None:
    desk = build_desk(build("llama"))
    house = House(desk)
    house.greet(None, "root's")
    house.greet("carl", "carl's")
    assert isinstance(house.ask("carl", ask.Open(session="held")), Opened)
    size = desk.engine.description.hidden_size
    desk.engine.apply_owner_budgets(lambda person: Quota(device=10 * 4 * size))
    refused = [
        house.ask("carl", ask.Steer(session="held", site="resid_post.1", edit=Add(vector=array(torch.randn(size)))))
        for _ in range(12)
    ]
    assert [isinstance(one, Failed) for one in refused] == [False] * 10 + [True] * 2
    assert refused[-1].code == "OverQuota"
    assert "remove a rule or an edit" in refused[-1].message
    desk.engine.apply_owner_budgets(lambda person: NO_QUOTA)
    desk.engine.residency._most_given = 11 * 4 * size
    for code in ("", "UsageError"):
        given = ask.Steer(session="held", site="resid_post.1", edit=Add(vector=array(torch.randn(size))))
        assert getattr(house.ask("carl", given), "code", "") == code
    desk.close_all()


def test_the_values_of_a_patch_and_arrays_of_rules_that_are_gone_have_a_limit() -> None:
    desk = build_desk(build("llama"))
    for name in "ab":
        desk.open(name)
        desk.stop_at("resid_post.1", name=name)
        desk.run(PROMPT, 2, name)
    desk.engine.residency._most_given = 4 * desk.engine.description.hidden_size * 2
    patch = PatchFrom(session="b", positions=(37, 38, 39))
    with pytest.raises(UsageError, match="arrays of rules and edits"):
        desk.edit(patch, positions=(37, 38, 39))
    desk.edit(PatchFrom(session="b", positions=(38, 39)), positions=(38, 39))
    desk.ask(ask.RevertEdits(session="a"))
    desk.clear("b")
    for refused in (False, False, True):
        vector = array(torch.randn(desk.engine.description.hidden_size))
        with pytest.raises(UsageError, match="arrays of rules and edits") if refused else nullcontext():
            number = desk.steer("resid_post.2", Add(vector=vector), name="b").rule.number
            desk.resume("b")
            desk.run(tokens(3), 1, "b", extend=True)
            desk.ask(ask.Unsteer(session="b", number=number))
            desk.stop_at("resid_post.1", name="b")
            desk.run(tokens(2), 1, "b", extend=True)
            desk.clear("b")
    desk.close_all()
