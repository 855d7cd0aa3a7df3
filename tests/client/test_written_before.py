"""Files that version 79ba2cba wrote are read; damaged files are refused in one sentence."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest

import djinn_jupyter as dj
from djinn_jupyter.api.engine import RemoteEngine
from djinn_jupyter.api.runs import given_prompts
from djinn_jupyter.errors import DjinnError, StorageFailed, UsageError
from djinn_jupyter.files import WRITTEN
from djinn_jupyter.methods.sweep.api.arguments import given_pairs
from djinn_jupyter.modules.training.process import module_in
from tests.client import crafted
from tests.client.fixtures import write as before
from tests.client.reached import reached
from tests.engine.desk import Desk

FOLDER: Final = before.HERE / "79ba2cba"
SAID: Final[dict[str, Any]] = json.loads((FOLDER / "said.json").read_text(encoding="utf-8"))


# kinds of results since that version
LATER: Final = {dj.TokenMeasures, dj.TextLens, dj.FeaturePage, dj.ScoreParts, dj.HeadPage}


def test_every_kind_was_written() -> None:
    assert {kind for kind, _ in before.KINDS.values()} - LATER == {
        before.KINDS[name.split(".")[-1]][0] for name in SAID["results"]
    }


@pytest.mark.parametrize("name", SAID["results"])
def test_a_result_is_read(name: str) -> None:
    kind, ending = before.KINDS[name.split(".")[-1]]
    said, now = SAID["results"][name], before.said_of(kind.read(FOLDER / f"{name}{ending}"))
    assert now["numbers"] == said["numbers"]
    assert {column: now["columns"][column] for column in said["columns"]} == said["columns"]


@pytest.mark.parametrize("name", SAID["results"])
def test_a_result_is_computed_again_from_its_recipe(engine: RemoteEngine, name: str) -> None:
    """The recipe is understood; whether this processor comes to the same bits is another question."""
    ending = before.KINDS[name.split(".")[-1]][1]
    if name in ("AttributionGraph", "Splice"):
        with pytest.raises(dj.DjinnError, match="add"):
            dj.reproduce(engine, FOLDER / f"{name}{ending}")
        return
    again = dj.reproduce(engine, FOLDER / f"{name}{ending}")
    assert again.same or again.largest_difference < 1e-3


@pytest.mark.parametrize("name", SAID["collections"])
def test_a_collection_is_read(name: str) -> None:
    assert before.said_of_collection(dj.Activations(FOLDER / "collections" / name)) == SAID["collections"][name]


@pytest.mark.parametrize("name", SAID["modules"])
def test_a_trained_module_is_read(engine: RemoteEngine, name: str) -> None:
    folder = FOLDER / "modules" / name
    assert before.said_of_module(folder) == SAID["modules"][name]
    assert module_in(folder, "resid_post.1", name).figures
    try:
        assert engine.add_module("it", folder).site == "it.1"
    finally:
        engine.remove_module("it")


def test_a_collection_is_gone_on_with(engine: RemoteEngine, tmp_path: Path) -> None:
    """Collecting into a folder of that version takes its shards for those that are there, where random weights have the
    bits that they had on the processor that wrote them."""
    shutil.copytree(FOLDER / "collections" / "all", tmp_path / "all")
    dates = {path: path.stat().st_mtime_ns for path in (tmp_path / "all").iterdir()}
    here = engine.collect(before.PROMPTS[:1], ["z.1"], to=tmp_path / "one").shards[0].note["model"]
    if here != dj.Activations(tmp_path / "all").shards[0].note["model"]:
        with pytest.raises(UsageError, match=r"is of another collection \(model: "):
            engine.collect(before.PROMPTS, ["resid_post.1", "z.1"], to=tmp_path / "all", shard_prompts=1)
    else:
        acts = engine.collect(before.PROMPTS, ["resid_post.1", "z.1"], to=tmp_path / "all", shard_prompts=1)
        assert before.said_of_collection(acts) == SAID["collections"]["all"]
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "all").iterdir()} == dates


PROMPTS: Final = [(9, 8, 7, 21, 22), (9, 8), (31, 7, 7, 5)]
SITE: Final = "resid_post.1"
SECONDS: Final = 60  # a pipe that is opened as a file blocks for ever


@pytest.fixture
def pipe(tmp_path: Path) -> Path:
    os.mkfifo(tmp_path / "pipe.grid.djinn")
    return tmp_path / "pipe.grid.djinn"


@pytest.fixture(scope="module")
def collected(desk: Desk, tmp_path_factory: pytest.TempPathFactory) -> Path:
    with reached(desk) as [engine]:
        return engine.collect(PROMPTS, SITE, to=tmp_path_factory.mktemp("collected"), shard_prompts=1).folder


@pytest.fixture
def acts(collected: Path, tmp_path: Path) -> dj.Activations:
    return dj.Activations(shutil.copytree(collected, tmp_path / "acts"))


@pytest.fixture
def grid(engine: RemoteEngine) -> dj.Grid:
    return dj.sweep(
        engine, clean=PROMPTS[2], corrupted=(31, 7, 8, 5), site="resid_post", over="layer", metric="logit(3)"
    )


@pytest.mark.timeout(SECONDS)
@pytest.mark.parametrize("read", [given_pairs, lambda path: list(given_prompts(path)), dj.Grid.read])
def test_a_pipe_is_refused_and_does_not_block(pipe: Path, read: Callable[[Path], object]) -> None:
    with pytest.raises(UsageError, match="could not be read: it is no regular file"):
        read(pipe)


@pytest.mark.timeout(SECONDS)
@pytest.mark.parametrize("replace", [False, True])
def test_a_result_is_not_saved_over_a_pipe(grid: dj.Grid, pipe: Path, replace: bool) -> None:
    with pytest.raises(StorageFailed, match="could not be written: it is no regular file"):
        grid.save(pipe, replace=replace)
    assert pipe.is_fifo()


def test_lines_of_a_file_end_as_on_any_system_and_are_bounded(tmp_path: Path) -> None:
    path = tmp_path / "prompts.txt"
    with path.open("wb") as file:
        file.truncate(2**43)
    with pytest.raises(UsageError, match="larger than the memory that is left"):
        list(given_prompts(path))
    path = tmp_path / "prompts.txt"
    path.write_bytes(b"\xef\xbb\xbfone\r\ntwo\rthree\n")
    assert list(given_prompts(path)) == ["one", "two", "three"]


def test_a_line_that_no_message_carries_is_named(engine: RemoteEngine, tmp_path: Path) -> None:
    with pytest.raises(DjinnError, match=r"^Prompt 1 \(counted from 0\): "):
        engine.collect(["the", "a" * 2**27], SITE, to=tmp_path)


def test_a_recipe_that_names_a_session_is_refused(grid: dj.Grid, tmp_path: Path) -> None:
    """It would be a session of the one who reads it."""
    path = grid.save(tmp_path / "a.grid.djinn")
    head, body = crafted.parts(path)
    told = crafted.told(head)
    told["replies"][0]["made"]["asked"]["corrupted"] = "main"
    crafted.put_told(path, head, body, told)
    with pytest.raises(UsageError, match="its lines are no tokens"):
        dj.Grid.read(path)


def _noted(**fields: Any) -> Callable[[Path], None]:
    """Return a damage: a shard whose note has these fields instead, and no digest of itself, as one made by hand."""

    def damage(path: Path) -> None:
        head, body = crafted.parts(path)
        note = crafted.told(head) | fields
        note.pop(WRITTEN)
        head["__metadata__"]["djinn"] = json.dumps(note)
        crafted.put(path, head, body)

    return damage


def _entered(name: str = SITE, **fields: Any) -> Callable[[Path], None]:
    """Return a damage: a shard whose tensor of this name has these fields instead."""

    def damage(path: Path) -> None:
        head, body = crafted.parts(path)
        head[name] |= fields
        crafted.put(path, head, body)

    return damage


def _without(name: str) -> Callable[[Path], None]:
    def damage(path: Path) -> None:
        head, body = crafted.parts(path)
        del head[name]
        crafted.put(path, head, body)

    return damage


def _replaced_by(make: Callable[[Path], object]) -> Callable[[Path], None]:
    def damage(path: Path) -> None:
        path.unlink()
        make(path)

    return damage


NESTED: Final = b"[" * 200_000
DAMAGED: Final[dict[str, Callable[[Path], object]]] = {
    "cut short": lambda path: os.truncate(path, path.stat().st_size - 4),
    "longer": lambda path: os.truncate(path, path.stat().st_size + 4),
    "empty": lambda path: os.truncate(path, 0),
    "nested": lambda path: path.write_bytes(len(NESTED).to_bytes(8, "little") + NESTED),
    "a pipe": _replaced_by(os.mkfifo),
    "a device": _replaced_by(lambda path: path.symlink_to("/dev/zero")),
    "a note of nothing": _noted(sites=None),
    "sites that are not there": _noted(sites=["resid_post.2"]),
    "a model that is a word": _noted(model="llama"),
    "fewer prompts than none": _noted(prompts=-5),
    "more prompts": _noted(prompts=2**40),
    "a huge shape": _entered(shape=[2**40, 2**40]),
    "places before": _entered(data_offsets=[-8, 0]),
    "another kind of number": _entered(dtype="X9"),
    "no starts": _without("starts"),
    "no tokens": _without("tokens"),
    "no values": _without(SITE),
}


@pytest.mark.timeout(SECONDS)
@pytest.mark.parametrize("damage", DAMAGED.values(), ids=DAMAGED)
@pytest.mark.parametrize("which", [1])
def test_a_damaged_shard_is_refused_before_a_value_is_read(
    engine: RemoteEngine, acts: dj.Activations, damage: Callable[[Path], object], which: int
) -> None:
    """Nor is it collected over."""
    path = acts.shards[which].path
    damage(path)
    with pytest.raises(StorageFailed) as refused:
        dj.Activations(acts.folder)
    with pytest.raises((StorageFailed, UsageError)) as not_collected:
        engine.collect(PROMPTS, SITE, to=acts.folder, shard_prompts=1)
    assert all(str(path) in str(one.value) for one in (refused, not_collected))


def test_shards_of_other_widths_are_no_collection(engine: RemoteEngine, acts: dj.Activations, tmp_path: Path) -> None:
    other = engine.collect(PROMPTS, SITE, to=tmp_path / "other", shard_prompts=1, dtype="bfloat16").shards[1].path
    shutil.copy(other, acts.shards[1].path)
    _noted(dtype=None)(acts.shards[1].path)
    with pytest.raises(StorageFailed, match="values of another form than the shards before it"):
        dj.Activations(acts.folder)
