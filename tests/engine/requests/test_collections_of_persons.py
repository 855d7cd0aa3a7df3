"""A person's collection is handed over: no folder of the engine's machine is named, read or written for it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from djinn_jupyter.errors import UsageError
from djinn_jupyter.methods.datasets.request import CheckCollect, Collect, Collected
from djinn_jupyter.wire import requests as ask
from djinn_jupyter.wire.replies import Failed, Opened
from tests.engine.desk import desk_of, tokens
from tests.engine.requests.house import House

PROMPTS: Final = tuple(tokens(length, seed=length) for length in (7, 3))
REFUSAL: Final = (
    "A folder on the engine's machine is for its user alone: without one the shards of a collection are handed over, "
    "and written where the client is."
)


@pytest.fixture
def house() -> Iterator[House]:
    desk = desk_of("llama")
    house = House(desk)
    for person in ("anna", "bert"):
        assert isinstance(house.ask(person, ask.Open(session="c")), Opened)
    yield house
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
    house: House, tmp_path: Path, name: str, kind: type[Collect]
) -> None:
    """Absolute or not, through a link or above: the sentence is one, and says nothing of what is there."""
    place = tmp_path.joinpath(*"abcdefghijkl")  # deeper than any of these names leads up
    (place / "of bert").mkdir(parents=True, exist_ok=True)
    if not (place / "link").is_symlink():
        (place / "link").symlink_to(place / "of bert")
    before = everything(tmp_path)
    for folder in (f"{place}/{name}", f"./{name}", str(place / "of bert"), str(place / "link"), "/proc/nowhere"):
        refused = house.ask("anna", request(kind, folder=folder))
        assert isinstance(refused, Failed), refused
        assert (refused.code, refused.message) == (UsageError.__name__, REFUSAL)
    assert everything(tmp_path) == before


def test_each_has_the_same_bytes_as_the_engines_own_user_and_nothing_is_written(
    house: House, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    handed = [house.ask(person, request()) for person in ("anna", "bert")]
    assert everything(tmp_path) == []
    house.desk.open("c")
    written = house.desk.ask(request(folder=str(tmp_path / "acts")))
    for reply in handed:
        assert isinstance(reply, Collected), reply
        assert reply.path is None
        assert bytes(reply.content.data) == Path(written.path).read_bytes()
