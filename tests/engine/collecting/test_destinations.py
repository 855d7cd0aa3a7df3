"""A shard that is handed over has the bytes of its file, and of one that the client has only the note is asked."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from djinn_jupyter.errors import UsageError
from djinn_jupyter.methods.datasets.api.activations import ShardFile
from djinn_jupyter.methods.datasets.engine import shard
from djinn_jupyter.methods.datasets.engine.collection import Collecting
from djinn_jupyter.methods.datasets.engine.shard import MOST_HANDED_OVER, InFolder, WithClient
from djinn_jupyter.methods.datasets.request import Collect, Collected
from tests.engine.desk import Desk, desk_of, tokens

PROMPTS = tuple(tokens(length, seed=length) for length in (7, 3, 12, 7))


@pytest.fixture
def desk() -> Iterator[Desk]:
    desk = desk_of("llama", layers=4)
    desk.open("a")
    yield desk
    desk.close_all()


def collected(desk: Desk, **fields: Any) -> Collected:
    asked = {"shard": 0, "first": 0, "last": True, "prompts": PROMPTS, "sites": ("resid_post.1", "z.2[1]")}
    reply = desk.ask(Collect(session="a", **{**asked, **fields}))
    assert isinstance(reply, Collected), reply
    return reply


def note_of(path: Path) -> dict[str, Any]:
    return {name: value for name, value in ShardFile.at(path).note.items() if name != "computed"}


@pytest.mark.parametrize("asked", [{}, {"positions": (0, -1)}, {"dtype": "bfloat16"}, {"mode": "exact"}], ids=str)
def test_the_content_is_that_of_the_file(desk: Desk, tmp_path: Path, asked: dict[str, Any]) -> None:
    written = collected(desk, folder=str(tmp_path), **asked)
    handed = collected(desk, **asked)
    assert written.path is not None
    assert bytes(handed.content.data) == Path(written.path).read_bytes()
    assert (written.content, handed.path) == (None, None)
    assert handed.bytes_stored == written.bytes_stored == handed.content.nbytes
    assert (handed.existed, handed.rechecked, handed.mode) == (False, written.rechecked, written.mode)


def test_one_that_the_client_has_is_not_computed_again(desk: Desk, tmp_path: Path) -> None:
    written = collected(desk, folder=str(tmp_path))
    before = desk.engine.runtime.counters.layers_run
    again = collected(desk, there=json.dumps(note_of(Path(written.path or ""))))
    assert (again.existed, again.content, again.path, again.bytes_stored) == (True, None, None, None)
    assert desk.engine.runtime.counters.layers_run == before


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"dtype": "float16"}, r'shard-00000.safetensors is of another collection \(dtype: "float16" there, null here'),
        ({"model": {"name": "another"}}, r"\(model: .*another"),
        ({"shard": 1}, r"\(shard: 1 there, 0 here\)"),
        ({"sites": None}, r"\(sites: null there"),
    ],
)
def test_another_collection_is_refused_by_its_note(desk: Desk, tmp_path: Path, change: Any, said: str) -> None:
    note = note_of(Path(collected(desk, folder=str(tmp_path)).path or ""))
    with pytest.raises(UsageError, match=said):
        collected(desk, there=json.dumps(note | change))


@pytest.mark.parametrize(
    "there", ["", "{", "3", "[]", "null", "[" * 100_000, '"' + "9" * 5000], ids=lambda one: one[:5]
)
def test_what_is_no_note_is_refused_in_a_sentence(desk: Desk, there: str) -> None:
    with pytest.raises(UsageError, match="is no shard of a collection"):
        collected(desk, there=there)


def test_a_folder_with_the_note_of_a_client_is_refused(desk: Desk, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="in place of a folder"):
        collected(desk, folder=str(tmp_path), there="{}")
    assert [*tmp_path.iterdir()] == []


def test_more_than_is_handed_over_at_once_is_refused_and_is_written_into_a_folder(
    desk: Desk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shard, "MOST_HANDED_OVER", 1000)
    with pytest.raises(UsageError, match=r"more than the 1,000 B .* fewer prompts in each, by shard_prompts"):
        collected(desk)
    assert collected(desk, folder=str(tmp_path)).path is not None


def test_the_bytes_of_the_file_are_in_the_budget_beside_the_values(
    desk: Desk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held: dict[str, int] = {}
    put = Collecting._done

    def noted(self: Collecting, work: Any) -> Any:
        held[type(self.asked.destination).__name__] = desk.engine.budget.taken
        return (yield from put(self, work))

    monkeypatch.setattr(Collecting, "_done", noted)
    rows, width = sum(map(len, PROMPTS)), desk.engine.anatomy.hidden_size
    collected(desk, sites=("resid_post.1",), folder=str(tmp_path))
    taken = desk.engine.budget.taken
    collected(desk, sites=("resid_post.1",))
    assert held["WithClient"] - held["InFolder"] == rows * width * 4
    assert desk.engine.budget.taken == taken


def test_each_says_what_a_shard_takes_in_memory() -> None:
    assert InFolder(Path("x")).bytes_in_memory(2 * MOST_HANDED_OVER) == 2 * MOST_HANDED_OVER
    assert WithClient("x", None).bytes_in_memory(MOST_HANDED_OVER) == 2 * MOST_HANDED_OVER
