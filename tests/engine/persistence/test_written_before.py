"""Journals and checkpoints that version 79ba2cba wrote (`fixtures/`) are read: nothing in them has become another bit.

What a file holds (values at stops, logits, recordings, rows, states) is compared with that version's record of it, on
every machine. A session that goes on makes the same tokens everywhere, and values close to those written; where this
machine computes the works of `fixtures/write.py` to the bits that were written, those of the works that go on here.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from djinn_jupyter.engine.process.build import open_engine
from djinn_jupyter.engine.store import adopted
from djinn_jupyter.wire import requests as ask
from djinn_jupyter.wire.own import host_name
from tests.engine.desk import Desk
from tests.engine.persistence.crashes import forget
from tests.engine.persistence.fixtures import write as before

FILE_BYTES = 1 << 20


class Old:
    """The files once written of one model, and an engine of today that reads them."""

    def __init__(self, model: str, data: Path) -> None:
        self.works, self.folder = before.ALL[model], before.HERE / model
        self.said: dict[str, Any] = json.loads((self.folder / "sessions.json").read_text())
        self.tensors = load_file(self.folder / "tensors.safetensors")
        config = before.config(self.works, data)
        self._lay_out(data, config.identity.slug())
        self.desk = Desk(open_engine(config))
        self.found = {one.name: (one.exactness, one.residency) for one in self.desk.engine.reading.sessions}

    def _lay_out(self, data: Path, slug: str) -> None:
        """Lay out the files as a killed engine of this machine would have left them."""
        shutil.copytree(self.folder / "checkpoints", data / "checkpoints")
        locked = data / "journals" / slug / f"{host_name()}-0"
        shutil.copytree(self.folder / "journal", locked)
        for pages in locked.glob(f"*{adopted.SUFFIX}"):
            with pages.open("r+b") as file:
                file.truncate(FILE_BYTES)

    def tensors_of(self, name: str, *, becomes: bool = False) -> dict[str, Tensor]:
        there = {
            key.removeprefix(f"{name}/"): value for key, value in self.tensors.items() if key.startswith(f"{name}/")
        }
        return {key: value for key, value in there.items() if key.startswith("becomes ") == becomes}

    @cached_property
    def anew(self) -> dict[str, dict[str, Tensor]]:
        """What the works, run anew, become; empty where they do not come to the bits that were written."""
        works = {name: work for name, work in self.works.sessions.items() if name != "forked"}
        for name, work in works.items():
            work(self.desk, f"new {name}")
        if not all(same(self.tensors_of(name), before.standing(self.desk, f"new {name}")[1]) for name in works):
            return {}
        return {name: before.becomes(self.desk, f"new {name}")[1] for name in works}


def same(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(value, other[key]) for key, value in one.items())


@pytest.fixture(scope="module", params=list(before.ALL))
def old(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Old]:
    old = Old(request.param, tmp_path_factory.mktemp("data"))
    yield old
    forget(old.desk)


def stands_as_it_did(old: Old, name: str, kept: str) -> None:
    plain, tensors = before.standing(old.desk, name)
    assert plain == old.said[kept]["standing"]
    assert same(tensors, old.tensors_of(kept))


def becomes_what_it_did(old: Old, name: str, kept: str) -> None:
    plain, tensors = before.becomes(old.desk, name)
    assert plain == old.said[kept]["becomes"]
    for key, value in old.tensors_of(kept, becomes=True).items():
        mine = tensors[key.removeprefix("becomes ")]
        if key == "becomes first":
            assert torch.equal(mine, value), key
        torch.testing.assert_close(mine, value, rtol=1e-3, atol=1e-3)
    for key, value in old.anew.get(kept, {}).items():
        assert torch.equal(tensors[key], value), key


def test_its_journal_is_taken_over_and_goes_on(old: Old) -> None:
    """Sessions with keys, values and states on the disk are exact; those of the others are recomputed."""
    desk, works = old.desk, old.works
    on_disk, made_again = ("exact", "disk"), ("recomputed", "resident")
    assert old.found == {name: on_disk if name in works.on_disk else made_again for name in works.sessions}
    for name in works.sessions:
        desk.ask(ask.Open(session=name))
        desk.ask(ask.SwapIn(session=name))
        stands_as_it_did(old, name, name)
        if name in works.on_disk:
            assert before.rows_digest(desk, name) == old.said[name]["rows"]
        becomes_what_it_did(old, name, name)


def test_its_checkpoints_are_restored_bit_for_bit_and_go_on(old: Old) -> None:
    desk = old.desk
    assert {one.name for one in desk.engine.persistence.checkpoints.list().checkpoints} == set(old.works.checkpoints)
    for name in old.works.checkpoints:
        restored = f"restored {name}"
        told = desk.ask(ask.RestoreCheckpoint(session=restored, name=name)).session
        assert (told.exactness, told.residency) == ("exact", "resident")
        stands_as_it_did(old, restored, name)
        assert before.rows_digest(desk, restored) == old.said[name]["rows"]
        becomes_what_it_did(old, restored, name)
