"""Checkpoints in a store of objects: fsspec's own in memory here; tests/process/test_store.py has a server of S3."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fsspec.implementations.memory import MemoryFileSystem

from djinn_jupyter.engine.loop.mailbox import Holder
from djinn_jupyter.errors import CheckpointRefused, MissingDependency, StorageFailed, UnknownCheckpoint, UsageError
from djinn_jupyter.remote.engine import objects
from djinn_jupyter.remote.engine.checkpoint_store import CheckpointStore, require_store
from djinn_jupyter.remote.engine.objects import Objects
from djinn_jupyter.wire import requests as ask
from tests.engine.desk import Desk
from tests.engine.persistence.roundtrip import future, pair_of, reading, same
from tests.engine.persistence.works import in_prefill


class Store(MemoryFileSystem):
    """Objects of one test alone."""

    cachable = False

    def __init__(self) -> None:
        super().__init__()
        self.store: dict[str, Any] = {}
        self.pseudo_dirs: list[str] = [""]


@pytest.fixture
def files() -> Store:
    return Store()


@pytest.fixture
def pair(files: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Desk, Desk]]:
    one, other = pair_of("llama")
    for desk in (one, other):
        monkeypatch.setattr(desk.engine.persistence, "checkpoints", kept_by(desk, files, tmp_path))
    yield one, other
    one.close_all()
    other.close_all()
    assert list(tmp_path.iterdir()) == []  # nothing is left on the way


def kept_by(desk: Desk, files: Any, folder: Path) -> CheckpointStore:
    persistence = desk.engine.persistence
    return CheckpointStore(Objects("s3://lab/djinn", files), folder, persistence.identity, desk.engine.forward.device)


def test_a_session_goes_on_bit_for_bit_from_a_store_in_another_engine(pair: tuple[Desk, Desk], files: Store) -> None:
    one, other = pair
    one.open()
    in_prefill(one)
    before = reading(one)
    saved = one.ask(ask.SaveCheckpoint(session="a", name="noon"))
    assert saved.path == "s3://lab/djinn/noon.djinn"
    assert files.sizes(["lab/djinn/noon.djinn"]) == [saved.checkpoint.bytes_stored]
    (listed,) = other.engine.persistence.checkpoints.list().checkpoints
    assert listed == saved.checkpoint
    assert other.engine.persistence.checkpoints.bytes_by_person() == {None: saved.checkpoint.bytes_stored}
    other.ask(ask.RestoreCheckpoint(session="a", name="noon"))
    assert same(before, reading(other))
    assert same(future(one), future(other))


def test_an_engine_that_starts_knows_how_much_each_person_has_there(
    pair: tuple[Desk, Desk], files: Store, tmp_path: Path
) -> None:
    """So that no quota begins anew with an engine."""
    one, other = pair
    anna = Holder(name="kernel", user="anna", person="anna")
    one.engine.ask(ask.Open(session="anna@main"), anna)
    saved = one.engine.ask(ask.SaveCheckpoint(session="anna@main", name="anna@noon"), anna)
    later = kept_by(other, files, tmp_path)
    later.count()
    assert later.bytes_by_person() == {"anna": saved.checkpoint.bytes_stored}
    assert later.size_of("anna@noon") == saved.checkpoint.bytes_stored


def test_of_two_engines_that_save_one_name_the_second_is_refused_and_the_first_is_there(
    pair: tuple[Desk, Desk], files: Store
) -> None:
    for desk in pair:
        desk.open()
        in_prefill(desk)
    pair[0].ask(ask.SaveCheckpoint(session="a", name="noon"))
    first = files.cat_file("lab/djinn/noon.djinn")
    with pytest.raises(UsageError, match="There is a checkpoint 'noon' already"):
        pair[1].ask(ask.SaveCheckpoint(session="a", name="noon"))
    assert files.cat_file("lab/djinn/noon.djinn") == first
    pair[1].ask(ask.SaveCheckpoint(session="a", name="noon", replace=True))
    assert files.cat_file("lab/djinn/noon.djinn") != first


def test_what_is_not_there_is_told_with_what_is_and_what_is_dropped_is_gone(pair: tuple[Desk, Desk]) -> None:
    one, other = pair
    one.open()
    in_prefill(one)
    one.ask(ask.SaveCheckpoint(session="a", name="noon"))
    for refused in (lambda: other.ask(ask.RestoreCheckpoint(session="b", name="night")), lambda: drop(other, "night")):
        with pytest.raises(UnknownCheckpoint, match="There is no checkpoint 'night'; there are: noon"):
            refused()
    drop(other, "noon")
    assert other.engine.persistence.checkpoints.list().checkpoints == ()
    with pytest.raises(UnknownCheckpoint, match="there are: none"):
        one.ask(ask.RestoreCheckpoint(session="b", name="noon"))
    with pytest.raises(UsageError, match="is an address: an engine that is started with --checkpoints s3://lab/other"):
        one.ask(ask.RestoreCheckpoint(session="b", name="s3://lab/other/noon.djinn"))


def drop(desk: Desk, name: str) -> None:
    desk.engine.persistence.checkpoints.drop(name)


def test_a_changed_bit_is_refused_by_the_address(pair: tuple[Desk, Desk], files: Store) -> None:
    one, other = pair
    one.open()
    in_prefill(one)
    one.ask(ask.SaveCheckpoint(session="a", name="noon"))
    whole = bytearray(files.cat_file("lab/djinn/noon.djinn"))
    whole[len(whole) // 2] ^= 1
    files.pipe_file("lab/djinn/noon.djinn", bytes(whole))
    with pytest.raises(CheckpointRefused, match=r"^s3://lab/djinn/noon\.djinn is refused\. It is damaged"):
        other.ask(ask.RestoreCheckpoint(session="b", name="noon"))
    assert "b" not in other.engine.sessions


def test_a_store_that_fails_is_told_and_loses_nothing(
    pair: tuple[Desk, Desk], files: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, _ = pair
    one.open()
    in_prefill(one)
    before = reading(one)

    def failing(*asked: object, **more: object) -> None:
        raise RuntimeError("Could not connect to the endpoint.\nmore")

    monkeypatch.setattr(files, "put_file", failing)
    said = r"^s3://lab/djinn could not be written to: Could not connect to the endpoint\.$"
    with pytest.raises(StorageFailed, match=said):
        one.ask(ask.SaveCheckpoint(session="a", name="noon"))
    assert same(before, reading(one))
    monkeypatch.undo()
    one.ask(ask.SaveCheckpoint(session="a", name="noon"))


def test_a_store_without_an_atomic_compare_and_put_is_refused(monkeypatch: pytest.MonkeyPatch, files: Store) -> None:
    kept = Objects("s3://lab/djinn/", files)
    kept.require_compare_and_put()
    assert kept.sizes() == {}
    write = files.pipe_file
    monkeypatch.setattr(files, "pipe_file", lambda path, value, mode: write(path, value))
    with pytest.raises(UsageError, match=r"s3://lab/djinn does not refuse a second object of one name"):
        kept.require_compare_and_put()
    assert kept.sizes() == {}


def test_without_the_parts_that_speak_s3_it_is_said_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(objects, "find_spec", lambda name: None)
    with pytest.raises(MissingDependency, match=r"pip install 'djinn-jupyter\[store\]'"):
        require_store("s3://lab/djinn")
    require_store("/lab/djinn")
    require_store(None)
    with pytest.raises(MissingDependency, match=r"A journal in a store needs s3fs"):
        objects.require_journal_store("s3://lab/djinn")
