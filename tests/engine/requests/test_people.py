"""The list of persons: all of it for the engine's own user, and of others their memory alone for a person."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from djinn_jupyter.errors import UsageError
from djinn_jupyter.methods.datasets.request import CheckCollect, Collect, Collected
from djinn_jupyter.wire import protocol
from djinn_jupyter.wire import requests as ask
from djinn_jupyter.wire.people import PersonDescription
from djinn_jupyter.wire.replies import Failed, Finished, Opened
from tests.engine.desk import build_desk, desk_of, tokens
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


# --- collections ------------------------------------------------------------------------------------------------------


PROMPTS: Final = tuple(tokens(length, seed=length) for length in (7, 3))
REFUSAL: Final = (
    "A folder on the engine's machine is for its user alone: without one the shards of a collection are handed over, "
    "and written where the client is."
)


@pytest.fixture
def collecting() -> Iterator[House]:
    desk = desk_of("llama")
    collecting = House(desk)
    for person in ("anna", "bert"):
        assert isinstance(collecting.ask(person, ask.Open(session="c")), Opened)
    yield collecting
    desk.close_all()


def request(kind: type[Collect] = Collect, **fields: Any) -> Collect:
    return kind(
        session="c", shard=0, first=0, last=True, prompts=PROMPTS, sites=("resid_post.1",), mode="exact", **fields
    )


def everything(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*"))


PARTS = st.lists(st.sampled_from(["..", "/", "own", "link", "of bert", "~bert", "\0", "."]), max_size=12).map("".join)


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.one_of(st.text(max_size=30), PARTS), st.sampled_from([Collect, CheckCollect]))
def test_no_path_is_read_or_written_for_a_person_however_it_is_spelled(
    collecting: House, tmp_path: Path, name: str, kind: type[Collect]
) -> None:
    """Absolute or not, through a link or above: the sentence is one, and says nothing of what is there."""
    place = tmp_path.joinpath(*"abcdefghijkl")  # deeper than any of these names leads up
    (place / "of bert").mkdir(parents=True, exist_ok=True)
    if not (place / "link").is_symlink():
        (place / "link").symlink_to(place / "of bert")
    before = everything(tmp_path)
    for folder in (f"{place}/{name}", f"./{name}", str(place / "of bert"), str(place / "link"), "/proc/nowhere"):
        refused = collecting.ask("anna", request(kind, folder=folder))
        assert isinstance(refused, Failed), refused
        assert (refused.code, refused.message) == (UsageError.__name__, REFUSAL)
    assert everything(tmp_path) == before


def test_each_has_the_same_bytes_as_the_engines_own_user_and_nothing_is_written(
    collecting: House, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    handed = [collecting.ask(person, request()) for person in ("anna", "bert")]
    assert everything(tmp_path) == []
    collecting.desk.open("c")
    written = collecting.desk.ask(request(folder=str(tmp_path / "acts")))
    for reply in handed:
        assert isinstance(reply, Collected), reply
        assert reply.path is None
        assert bytes(reply.content.data) == Path(written.path).read_bytes()
