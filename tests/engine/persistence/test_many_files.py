"""A folder of checkpoints may have very many files, and any: what is asked of it costs no more for that."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from djinn_jupyter.engine.store import checkpoint_files, records
from djinn_jupyter.wire import requests as ask
from tests.engine.desk import Desk
from tests.engine.persistence.test_files import refusal, restore, save
from tests.engine.persistence.test_files import stopped as stopped


@pytest.fixture(autouse=True)
def _empty(stopped: Desk) -> None:
    for path in stopped.engine.persistence.checkpoints.folder.glob("*"):
        path.unlink()


def test_a_list_of_very_many_files_reads_the_last_ones_alone_and_says_how_many_it_left_out(
    stopped: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoint_files, "MOST_LISTED", 3)
    files = [save(stopped, name) for name in ("a", "b", "c", "d", "anna@e", "f")]
    for age, path in enumerate(files):
        os.utime(path, (time.time() - age,) * 2)
    read, told = list[Path](), checkpoint_files.told
    monkeypatch.setattr(checkpoint_files, "told", lambda path: read.append(path) or told(path))
    folder = stopped.engine.persistence.checkpoints
    listed = stopped.ask(ask.ListCheckpoints())
    assert ({one.name for one in listed.checkpoints}, listed.left_out) == ({"a", "b", "c"}, 3)
    assert len(read) == 3
    hers = folder.list("anna")
    assert ([one.name for one in hers.checkpoints], hers.left_out) == (["anna@e"], 0)
    restore(stopped, "f")


def test_the_bytes_of_persons_are_counted_again_only_where_the_folder_has_changed(
    stopped: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, path = stopped.engine.persistence.checkpoints, save(stopped, "anna@a")
    counted = folder.bytes_by_person()
    assert counted["anna"] == path.stat().st_size
    os.utime(folder.folder, (time.time() - 60,) * 2)
    assert folder.bytes_by_person() == counted
    monkeypatch.setattr(folder, "_files", lambda: pytest.fail("they were counted"))
    assert folder.bytes_by_person() == counted
    monkeypatch.undo()
    stopped.ask(ask.DropCheckpoint(name="anna@a"))
    assert "anna" not in folder.bytes_by_person()


@pytest.mark.parametrize("kind", [records.LABEL, records.ARRAY])
def test_of_a_file_whose_beginning_no_checkpoint_has_a_list_reads_no_more_than_that(
    stopped: Desk, kind: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = save(stopped, "long")
    with path.open("wb") as file:
        writer = records.Writer(file)
        writer.begin()
        writer.record(kind, b"x" * (checkpoint_files.HEAD_BYTES + 1))
    read = list[int]()
    monkeypatch.setattr(records.RecordReader, "_check", lambda _, head, lead, length: read.append(length))
    assert not stopped.ask(ask.ListCheckpoints()).checkpoints
    assert "It is damaged" in refusal(stopped, path)
    assert not read
