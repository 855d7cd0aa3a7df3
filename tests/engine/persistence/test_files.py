"""A checkpoint file is taken whole and as it was written, or refused in one sentence; never half."""

from __future__ import annotations

import errno
import os
import re
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from djinn_jupyter.engine.loop.mailbox import Holder
from djinn_jupyter.engine.store import checkpoint_files, records
from djinn_jupyter.engine.store.checkpoint_files import CheckpointFolder
from djinn_jupyter.errors import (
    CheckpointRefused,
    SessionsWouldSuffer,
    SlabFull,
    StorageFailed,
    UnknownCheckpoint,
    UnknownSite,
    UsageError,
)
from djinn_jupyter.wire import codec
from djinn_jupyter.wire import requests as ask
from tests.engine.desk import Desk, build_desk, desk_of, tokens
from tests.engine.persistence.roundtrip import pair_of
from tests.families import build

PROMPT = tokens(9)


@pytest.fixture
def stopped() -> Iterator[Desk]:
    """An engine with a session that is stopped in a decode step, and no checkpoint of other tests."""
    desk = desk_of("llama")
    for path in desk.engine.persistence.checkpoints.folder.glob("*"):
        path.unlink()
    desk.open()
    desk.stop_at(4, when="step == 1")
    desk.run(PROMPT, new=3)
    yield desk
    desk.close_all()


def save(desk: Desk, name: str = "paris", replace: bool = True) -> Path:
    return Path(desk.ask(ask.SaveCheckpoint(session="a", name=name, replace=replace)).path)


def restore(desk: Desk, name: str) -> None:
    desk.ask(ask.RestoreCheckpoint(session="b", name=name))


def refusal(desk: Desk, path: Path) -> str:
    """Return the reason why a file is refused. Fails where anything of the engine has changed."""
    before = set(desk.engine.sessions)
    with pytest.raises(CheckpointRefused) as refused:
        restore(desk, str(path))
    desk.settle()
    assert set(desk.engine.sessions) == before
    assert len(str(refused.value).splitlines()) == 1
    return str(refused.value)


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> tuple[CheckpointFolder, bytes, Path]:
    desk = build_desk(build("llama"))
    desk.open()
    desk.stop_at(4)
    desk.run(PROMPT, new=2)
    path = save(desk, "whole")
    return desk.engine.persistence.checkpoints, path.read_bytes(), tmp_path_factory.mktemp("damaged") / "x.djinn"


many = settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@many
@given(data=st.data())
def test_any_flipped_bit_is_refused(written: tuple[CheckpointFolder, bytes, Path], data: st.DataObject) -> None:
    folder, whole, path = written
    at = data.draw(st.one_of(st.integers(0, 400), st.integers(0, len(whole) - 1)))
    bit = data.draw(st.integers(0, 7))
    path.write_bytes(whole[:at] + bytes([whole[at] ^ (1 << bit)]) + whole[at + 1 :])
    with pytest.raises(CheckpointRefused):
        folder.read(path)


@many
@given(data=st.data())
def test_any_cut_is_refused(written: tuple[CheckpointFolder, bytes, Path], data: st.DataObject) -> None:
    folder, whole, path = written
    path.write_bytes(whole[: data.draw(st.one_of(st.integers(0, 400), st.integers(0, len(whole) - 1)))])
    with pytest.raises(CheckpointRefused):
        folder.read(path)
    path.write_bytes(whole + data.draw(st.binary(min_size=1, max_size=64)))
    with pytest.raises(CheckpointRefused):
        folder.read(path)


def test_a_cut_at_the_end_of_a_record_is_refused_too(written: tuple[CheckpointFolder, bytes, Path]) -> None:
    folder, whole, path = written
    path.write_bytes(whole)
    ends = []
    with path.open("rb") as file:
        reader = records.RecordReader(file)
        while reader.next() is not None:
            ends.append(reader.good)
    assert ends[-1] == len(whole)
    for end in ends[:-1]:
        path.write_bytes(whole[:end])
        with pytest.raises(CheckpointRefused, match="truncated"):
            folder.read(path)


def test_another_format_is_refused_with_the_remedy(
    stopped: Desk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (other := tmp_path / "notes.djinn").write_text("not at all")
    assert "not a checkpoint of Djinn" in refusal(stopped, other)
    newer = (records.FORMAT + 1, "upgrade Djinn")
    for number, said in (newer, (1, "load it with Djinn 79ba2cba"), (0, "damaged or not one of ours")):
        monkeypatch.setattr(records, "FORMAT", number)
        path = save(stopped, f"format {number}")
        monkeypatch.undo()
        assert said in refusal(stopped, path)


def test_another_model_is_refused(stopped: Desk) -> None:
    path, kept = save(stopped), stopped.engine.persistence
    assert "GPT2" in refusal(desk_of("gpt2"), path)
    for field, word in (("weights", "weights"), ("configuration", "configuration"), ("dtype", "dtype float32")):
        unlike = msgspec.structs.replace(kept.identity, **{field: "another"})
        with pytest.raises(CheckpointRefused, match=word):
            CheckpointFolder(kept.checkpoints.folder, unlike, torch.device("cpu")).read(path)


def test_names(stopped: Desk) -> None:
    save(stopped, "rome")
    with pytest.raises(UsageError, match="already"):
        save(stopped, "rome", replace=False)
    save(stopped, "rome")
    for name in ("a/b", "..", ".x", "x\n", "x" * 200, " x"):
        with pytest.raises(UsageError, match="cannot be the name"):
            save(stopped, name)
    with pytest.raises(UnknownCheckpoint, match="rome"):
        restore(stopped, "nowhere")
    with pytest.raises(UnknownCheckpoint, match="no file"):
        restore(stopped, "/nowhere/at/all.djinn")
    with pytest.raises(UsageError, match="full path"):
        restore(stopped, "here/x.djinn")


@pytest.mark.parametrize("site", ["z.4[1]", "z.4[2,0]", "resid_post.4[7]"])
def test_a_list_names_the_stop_as_its_breakpoint_does(stopped: Desk, site: str) -> None:
    stopped.clear()
    stopped.stop_at(site, when="step == 0")
    stopped.run(PROMPT, new=2)
    stopped.edit()
    save(stopped)
    restore(stopped, "paris")
    listed = stopped.ask(ask.ListCheckpoints()).checkpoints
    described = stopped.ask(ask.Describe(session="b")).session
    assert {one.stopped_at for one in listed if one.name == "paris"} == {described.stopped_at} == {site}
    with pytest.raises(UnknownSite, match=re.escape(f"lies ahead of the stop at {site};")):
        stopped.ask(ask.Inspect(session="a", site="resid_post.6"))


def test_a_list_names_them_newest_first_and_what_is_dropped_is_gone(stopped: Desk) -> None:
    for name in ("one", "two words"):
        path = save(stopped, name)
    (path.parent / "strange.djinn").write_text("no")
    listed = stopped.ask(ask.ListCheckpoints()).checkpoints
    assert [one.name for one in listed] == ["two words", "one"]
    assert (listed[0].stopped_at, listed[0].step, listed[0].tokens) == ("resid_post.4", 1, 10)
    assert listed[0].bytes_stored == path.stat().st_size
    stopped.ask(ask.DropCheckpoint(name="one"))
    with pytest.raises(UnknownCheckpoint):
        restore(stopped, "one")


def test_a_session_is_replaced_only_on_purpose(stopped: Desk) -> None:
    save(stopped)
    with pytest.raises(UsageError, match="already"):
        stopped.ask(ask.RestoreCheckpoint(session="a", name="paris"))
    stop = stopped.value()
    stopped.resume(free=True)
    stopped.ask(ask.RestoreCheckpoint(session="a", name="paris", replace=True))
    assert torch.equal(stopped.value(), stop)
    stopped.settle()


@pytest.mark.parametrize("after", [0, 3, 40])
def test_a_full_disk_leaves_nothing_behind(stopped: Desk, monkeypatch: pytest.MonkeyPatch, after: int) -> None:
    """The disk refuses at the first record, among the arrays, and at the final flush."""
    path = save(stopped, "before")
    there = set(path.parent.iterdir())
    writes = iter(range(10_000))

    def write(self: records.Writer, *parts: bytes | memoryview) -> None:
        if next(writes) >= after:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        real(self, *parts)

    def flush(file: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    real = records.Writer._write
    monkeypatch.setattr(records.Writer, "_write", write)
    monkeypatch.setattr(checkpoint_files, "_to_disk", flush)
    for name in ("new", "before"):
        with pytest.raises(StorageFailed, match="No space left"):
            save(stopped, name)
    assert set(path.parent.iterdir()) == there
    monkeypatch.undo()
    restore(stopped, "before")
    assert torch.equal(stopped.value(name="b"), stopped.value(name="a"))


def test_what_a_killed_engine_was_writing_goes_when_it_is_a_day_old(stopped: Desk) -> None:
    folder = save(stopped).parent
    old, young = folder / ".old.part", folder / ".young.part"
    for path in (old, young):
        path.write_bytes(b"DJINNKPT")
    os.utime(old, (time.time() - 25 * 3600,) * 2)
    save(stopped)
    assert not old.exists()
    assert young.exists()
    young.unlink()


def test_no_room_for_the_rows_leaves_the_engine_as_it_was() -> None:
    one, _ = pair_of("llama")
    one.open()
    one.run(tokens(400), new=1)
    path = save(one)
    small = build_desk(
        build("llama"),
        device_memory=one.engine.weights.statistics().bytes_total + (1 << 18),
        host_memory=0,
        disk_memory=0,
    )
    small.open("mine")
    small.run(PROMPT, new=2, name="mine")
    pages = [slab.pages_in_use for slab in small.engine.slabs]
    with pytest.raises(SlabFull, match=r"^Asked for 4\d\d KiB; .* the limit is 256 KiB for all"):
        restore(small, str(path))
    assert [slab.pages_in_use for slab in small.engine.slabs] == pages
    small.close_all()
    one.close_all()


def test_others_are_served_while_a_file_is_written(stopped: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """The disk does not answer until another session has run to its end."""
    disk = threading.Event()
    real = checkpoint_files._to_disk
    monkeypatch.setattr(checkpoint_files, "_to_disk", lambda file: (disk.wait(60), real(file)))
    stopped.open("other")
    saved: list[object] = []
    stopped.post(ask.SaveCheckpoint(session="a", name="slow", replace=True), saved)
    assert len(stopped.run(PROMPT, new=5, name="other").tokens) == 5
    assert not saved
    refused: list[object] = []
    stopped.post(ask.Resume(session="a"), refused)  # it waits: what is being written stays as it is
    stopped.run(PROMPT, new=2, name="other")
    assert not refused
    disk.set()
    while not refused:
        stopped.engine.tick()
    assert saved


def test_a_session_that_is_closed_meanwhile_leaves_no_file(stopped: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = threading.Event()
    real = checkpoint_files._to_disk
    monkeypatch.setattr(checkpoint_files, "_to_disk", lambda file: (disk.wait(60), real(file)))
    saved: list[object] = []
    stopped.post(ask.SaveCheckpoint(session="a", name="never"), saved)
    stopped.engine.tick()
    while not stopped.engine.scheduler.waiting:
        stopped.engine.tick()
    stopped.close("a")
    disk.set()
    stopped.engine.persistence.file_worker.start(lambda: None).result()
    with pytest.raises(UnknownCheckpoint):
        restore(stopped, "never")


def test_what_another_kernel_has_open_is_restored_over_with_force_only(stopped: Desk) -> None:
    """Then the kernel that restored it owns it, and the other kernel's next verb meets the restored session."""
    save(stopped)
    other, before = Holder(name="other", user="tester"), stopped.session()
    over = ask.RestoreCheckpoint(session="a", name="paris", replace=True)
    with pytest.raises(
        SessionsWouldSuffer, match=r"'a' is open in another kernel .*; to restore over it .* --force .in Py"
    ):
        stopped.engine.ask(over, other)
    assert stopped.session() is before
    stopped.engine.ask(msgspec.structs.replace(over, force=True), other)
    assert stopped.session() is not before
    assert stopped.session().holder == "other"
    assert stopped.resume(free=True).tokens


def test_who_opens_a_session_while_a_checkpoint_is_read_keeps_it(stopped: Desk) -> None:
    save(stopped)
    stopped.session().detach()
    paris, rome = (Holder(name=f"kernel-{city}", user="tester", notebook=f"{city}.ipynb") for city in ("paris", "rome"))
    over = ask.RestoreCheckpoint(session="a", name="paris", replace=True)
    replies: list[Any] = []
    stopped.engine.submit(over, paris, replies.append)
    stopped.engine.submit(ask.Open(session="a"), rome, lambda reply: None)
    before = stopped.session()
    while not replies:
        if not stopped.engine.tick():
            stopped.engine.mailbox.wait(0.002)
    (refused,) = replies
    assert refused.code == "SessionsWouldSuffer"
    assert stopped.session() is before
    stopped.engine.ask(msgspec.structs.replace(over, force=True), paris)
    assert (stopped.session().holder, stopped.session().notebook) == ("kernel-paris", "paris.ipynb")


def test_a_file_whose_name_is_no_text_is_listed_found_and_dropped_by_what_stands_for_it(stopped: Desk) -> None:
    stopped.ask(ask.SaveCheckpoint(session="a", name="noon", replace=True))
    folder = stopped.engine.persistence.checkpoints.folder
    (folder / "noon.djinn").rename(os.fsdecode(os.fsencode(folder) + b"/caf\xe9.djinn"))
    told = stopped.ask(ask.ListCheckpoints())
    assert codec.decode_reply(codec.encode(1, told)).body == told
    (name,) = [one.name for one in told.checkpoints if "caf" in one.name]
    assert name.isprintable()
    assert stopped.ask(ask.DropCheckpoint(name=name)).count == 1


@pytest.mark.parametrize("name", ["/" + "x" * 500, "~nobody-of-this-name/x", "/\0"])
def test_a_path_that_cannot_be_one_is_refused_in_a_sentence(stopped: Desk, name: str) -> None:
    with pytest.raises((UnknownCheckpoint, UsageError)) as told:
        stopped.ask(ask.RestoreCheckpoint(session="b", name=name))
    assert str(told.value).endswith(".")


# --- a folder of very many files --------------------------------------------------------------------------------------


def test_a_list_of_very_many_files_reads_the_last_ones_alone_and_says_how_many_it_left_out(
    stopped: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoint_files, "MOST_LISTED", 3)
    files = [save(stopped, name) for name in ("a", "b", "c", "d", "anna@e", "f")]
    for age, path in enumerate(files):
        os.utime(path, (time.time() - age,) * 2)
    read, told = list[Path](), checkpoint_files.entry_of
    monkeypatch.setattr(checkpoint_files, "entry_of", lambda path: read.append(path) or told(path))
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
