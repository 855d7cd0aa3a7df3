"""Results, collections and trained modules that version 79ba2cba wrote (`fixtures/`) are read, each number of them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any, Final

import pytest

import djinn_jupyter as dj
from djinn_jupyter.api.engine import RemoteEngine
from djinn_jupyter.errors import UsageError
from djinn_jupyter.modules.training.process import module_in
from tests.client.fixtures import write as before

FOLDER: Final = before.HERE / "79ba2cba"
SAID: Final[dict[str, Any]] = json.loads((FOLDER / "said.json").read_text(encoding="utf-8"))


def test_every_kind_was_written() -> None:
    assert {kind for kind, _ in before.KINDS.values()} == {
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
