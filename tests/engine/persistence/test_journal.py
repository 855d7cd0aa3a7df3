"""The journal's files: torn ends are normal, damage is noticed, an unusable file is set aside and never deleted."""

from __future__ import annotations

import os
import resource
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path

import msgspec
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from djinn_jupyter.engine.store import journal_file as journal_files
from djinn_jupyter.engine.store import records
from djinn_jupyter.engine.store.dump import dump_session
from djinn_jupyter.engine.store.identity import ModelIdentity
from djinn_jupyter.engine.store.image import SessionImage
from djinn_jupyter.engine.store.journal_file import (
    MOST_FILES,
    SUFFIX,
    Disk,
    JournalFiles,
    JournalName,
    OpenFiles,
    read_journal_file,
)
from djinn_jupyter.engine.store.locked_folder import take_folder
from djinn_jupyter.engine.store.session_store import ImageSource
from djinn_jupyter.errors import CheckpointRefused, StorageFailed
from djinn_jupyter.wire import requests as ask
from tests.device import DEVICE
from tests.engine import desk as desks
from tests.engine.desk import Desk, build_desk, desk_of, tokens
from tests.engine.persistence.crashes import crashed, forget, journal, written
from tests.engine.persistence.roundtrip import pair_of
from tests.families import build

PROMPT = tokens(9)
CPU = torch.device("cpu")
MODEL = ModelIdentity(architecture="a", configuration="b", weights="c", dtype="d", attention="e", device="cpu")


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    """An engine with a journal in `tmp_path / "alive"`."""
    desk = desk_of("llama")
    journal(desk, tmp_path / "alive")
    yield desk
    forget(desk)


def files(folder: Path) -> list[Path]:
    return sorted(folder.rglob(f"*{SUFFIX}"))


def images(count: int) -> list[SessionImage]:
    """A session after each of several moves."""
    desk = build_desk(build("llama"))
    desk.open()
    desk.stop_at(3)
    desk.run(PROMPT, new=count)
    taken = []
    for _ in range(count):
        taken.append(dump_session(desk.session(), None))
        desk.resume()
    return taken


def files_in(
    folder: Path, values: Callable[[torch.Tensor], torch.Tensor] = torch.Tensor.cpu, device: torch.device = DEVICE
) -> JournalFiles:
    """A session's files, the first of which will be `x.0.session`."""
    return JournalFiles(JournalName(folder=folder, stem="x", number=-1), ImageSource(MODEL, device, values), Disk())


@pytest.fixture(scope="module")
def four_images(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, bytes, list[int], list[SessionImage]]:
    """A session's file with four images, and where each of them ends."""
    folder = tmp_path_factory.mktemp("journal")
    session_files, taken, ends = files_in(folder), images(4), []
    for image in taken:
        session_files.write(image)
        ends.append((folder / f"x.0{SUFFIX}").stat().st_size)
    session_files.close()
    return folder / f"y{SUFFIX}", (folder / f"x.0{SUFFIX}").read_bytes(), ends, taken


many = settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@many
@given(data=st.data())
def test_a_file_cut_anywhere_gives_the_last_whole_image(
    four_images: tuple[Path, bytes, list[int], list[SessionImage]], data: st.DataObject
) -> None:
    path, whole, ends, taken = four_images
    cut = data.draw(st.integers(0, len(whole)))
    path.write_bytes(whole[:cut])
    last = sum(end <= cut for end in ends) - 1
    if last < 0:
        with pytest.raises(CheckpointRefused):
            read_journal_file(path, MODEL, DEVICE)
        return
    found = read_journal_file(path, MODEL, DEVICE)
    assert not found.damaged
    assert found.image.tokens == taken[last].tokens
    assert len(found.image.history.stops) == len(taken[last].history.stops)
    for frame, other in zip(found.image.frames, taken[last].frames, strict=True):
        assert torch.equal(frame.hidden, other.hidden)


@many
@given(data=st.data())
def test_a_flipped_bit_is_noticed_and_an_image_before_it_used(
    four_images: tuple[Path, bytes, list[int], list[SessionImage]], data: st.DataObject
) -> None:
    path, whole, ends, taken = four_images
    at = data.draw(st.integers(0, len(whole) - 1))
    path.write_bytes(whole[:at] + bytes([whole[at] ^ (1 << data.draw(st.integers(0, 7)))]) + whole[at + 1 :])
    last = sum(end <= at for end in ends) - 1
    if last < 0:
        with pytest.raises(CheckpointRefused):
            read_journal_file(path, MODEL, DEVICE)
        return
    assert read_journal_file(path, MODEL, DEVICE).image.tokens == taken[last].tokens


def test_arrays_are_stored_once_and_a_file_of_old_ones_is_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal_files, "SLACK_BYTES", 0)
    session_files, taken = files_in(tmp_path), images(4)
    sizes = []
    for image in taken:
        session_files.write(image)
        sizes.append(sum(path.stat().st_size for path in files(tmp_path)))
    frame = taken[-1].frames[0].hidden
    (first,) = files(tmp_path)
    assert first.read_bytes().count(frame.cpu().numpy().tobytes()) == 1
    for _ in range(30):
        session_files.write(taken[-1], compact=session_files.wasteful)
        assert len(files(tmp_path)) <= 2, "the one before stays until the new one is on the disk"
        session_files.force()
        (there,) = files(tmp_path)
        sizes.append(there.stat().st_size)
    assert min(b - a for a, b in pairwise(sizes)) < 0
    assert max(sizes) < 4 * sizes[3]
    assert there != first
    assert read_journal_file(there, MODEL, DEVICE).image.tokens == taken[-1].tokens
    session_files.close()


class OnAGpu(torch.Tensor):
    """A tensor on the host that says it is elsewhere until it is copied."""

    device = torch.device("cuda", 0)  # type: ignore[assignment]

    def detach(self) -> OnAGpu:
        return self

    def to(self, device: str, *, copy: bool) -> torch.Tensor:  # type: ignore[override]
        return self.as_subclass(torch.Tensor).to(device, copy=copy)


def test_what_was_on_a_gpu_goes_back_to_one_and_what_was_on_the_host_stays_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The values are written as copies on the host, whichever it was. All of this image but one are on the host."""
    monkeypatch.setattr(desks, "DEVICE", CPU)
    (image,) = images(1)
    (frame,) = image.frames
    on_gpu = msgspec.structs.replace(frame, hidden=frame.hidden.as_subclass(OnAGpu))
    session_files = files_in(tmp_path, lambda tensor: tensor.to("cpu", copy=True), torch.device("cuda"))
    session_files.write(msgspec.structs.replace(image, frames=(on_gpu,)))
    session_files.close()
    with files(tmp_path)[0].open("rb") as opened:
        reader = records.RecordReader(opened)
        found = [record for record in iter(reader.next, None) if record.head is not None]
        at_home = [reader.values(record) for record in found if record.head.at_home]
    assert len(found) > len(at_home) == 1
    assert torch.equal(at_home[0], frame.hidden)


def test_another_version_and_another_model_are_set_aside(
    desk: Desk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk.open()
    desk.run(PROMPT, new=2)
    written(desk)
    left = crashed(tmp_path / "alive", tmp_path / "left")
    (found,) = files(left)
    was = found.read_bytes()
    strange = build_desk(build("llama", seed=4))
    assert journal(strange, left) == ()
    (aside,) = files(left)
    assert aside.parent.name == "aside"
    assert aside.read_bytes() == was
    told = strange.ask(ask.Open(session="a")).note or ""
    assert "What an earlier engine kept of session 'a' is set aside, so it begins empty: It is of another" in told
    assert "the weights differ from this engine's" in told
    assert strange.ask(ask.Open(session="b")).note is None
    forget(strange)
    assert files(left) == [aside]
    again = build_desk(build("llama"))
    assert journal(again, left) == ("a",)
    assert again.session().tokens == desk.session().tokens
    assert again.run((), new=3, extend=True).tokens == desk.run((), new=3, extend=True).tokens
    assert not list(left.rglob("aside/*"))
    forget(again)
    monkeypatch.setattr(records, "FORMAT", records.FORMAT + 1)
    desk.open("newer")
    written(desk)
    monkeypatch.undo()
    newer = crashed(tmp_path / "alive", tmp_path / "newer")
    other = build_desk(build("llama"))
    assert journal(other, newer) == ("a",)
    (aside,) = [path for path in files(newer) if path.parent.name == "aside"]
    assert aside.name != found.name
    forget(other)


def test_two_engines_at_once_never_have_one_session_both(tmp_path: Path) -> None:
    one, other = pair_of("llama")
    for desk in (one, other):
        assert journal(desk, tmp_path / "shared") == ()
        desk.open()
        desk.run(PROMPT, new=2)
        written(desk)
    left = crashed(tmp_path / "shared", tmp_path / "left")
    forget(one)
    forget(other)
    assert journal(one, left) == ("a", "a (2)")
    assert journal(other, left) == ()
    forget(one)
    forget(other)
    assert files(left) == []


def test_a_berth_is_one_process_s_until_it_ends(tmp_path: Path) -> None:
    first = take_folder(tmp_path, "here", SUFFIX, ".pages")
    second = take_folder(tmp_path, "here", SUFFIX, ".pages")
    elsewhere = take_folder(tmp_path, "there", SUFFIX, ".pages")
    assert len({first.folder, second.folder, elsewhere.folder}) == 3
    for locked, name in ((first, "x"), (second, "x"), (elsewhere, "y")):
        (locked.folder / f"{name}{SUFFIX}").write_text(str(locked.folder))
        locked.release()
    third = take_folder(tmp_path, "here", SUFFIX, ".pages")
    assert len(third.files(SUFFIX)) == 2
    assert elsewhere.folder.exists()
    assert not second.folder.exists()
    third.release()


def test_no_place_for_a_journal_is_said_with_the_remedy(tmp_path: Path) -> None:
    desk = desk_of("llama")
    (tmp_path / "journals").write_text("in the way")
    with pytest.raises(StorageFailed, match="--no-journal"):
        journal(desk, tmp_path)


def same_hidden(one: SessionImage, other: SessionImage) -> bool:
    pairs = zip(one.frames, other.frames, strict=True)
    return one.tokens == other.tokens and all(torch.equal(a.hidden, b.hidden) for a, b in pairs)


# --- open files -------------------------------------------------------------------------------------------------------


@contextmanager
def no_descriptor_left() -> Iterator[None]:
    """Within it this process may open no file more than it has."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    free = os.dup(0)
    os.close(free)
    resource.setrlimit(resource.RLIMIT_NOFILE, (free, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def _write(files: OpenFiles, path: Path, text: bytes, *, create: bool = False) -> None:
    with files.opened(path, create=create) as descriptor:
        os.lseek(descriptor, 0, os.SEEK_END)
        os.write(descriptor, text)


def test_files_are_closed_beyond_a_number_and_opened_again_by_need(tmp_path: Path) -> None:
    files, paths = OpenFiles(3), [tmp_path / str(number) for number in range(10)]
    for path in paths:
        _write(files, path, b"one ", create=True)
    for path in paths:
        _write(files, path, b"two")
    assert len(files) == 3
    assert {path.read_bytes() for path in paths} == {b"one two"}
    with pytest.raises(FileExistsError), files.opened(paths[0], create=True):
        pass


def test_what_is_in_use_stays_open_and_everything_else_makes_room(tmp_path: Path) -> None:
    files = OpenFiles(2)
    for name in ("a", "b"):
        _write(files, tmp_path / name, b"", create=True)
    with no_descriptor_left():
        _write(files, tmp_path / "c", b"there", create=True)
        with files.opened(tmp_path / "c") as used:
            for name in ("a", "b", "a"):
                _write(files, tmp_path / name, b".")
            assert os.pread(used, 9, 0) == b"there"
    assert (tmp_path / "a").read_bytes() == b".."


def test_two_threads_share_the_files(tmp_path: Path) -> None:
    files, paths = OpenFiles(2), [tmp_path / str(number) for number in range(6)]
    for path in paths:
        _write(files, path, b"", create=True)

    def write() -> None:
        for _ in range(200):
            for path in paths:
                with files.opened(path) as descriptor:
                    assert os.path.samestat(os.fstat(descriptor), path.stat())

    threads = [threading.Thread(target=write) for _ in range(2)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert len(files) <= 2
    files.close(paths[0])
    files.close(paths[0])


def test_a_session_at_rest_takes_no_descriptor_and_all_are_written_where_none_is_left(tmp_path: Path) -> None:
    desk = desk_of("llama")
    journal(desk, tmp_path / "alive")
    names = [f"session {number}" for number in range(MOST_FILES + 20)]
    without = len(os.listdir("/dev/fd"))
    for name in names:
        desk.open(name)
    written(desk)
    assert len(os.listdir("/dev/fd")) <= without + MOST_FILES
    before = len(os.listdir("/dev/fd"))
    with no_descriptor_left():
        desk.run(tokens(5), new=1, name=names[0])
        desk.run(tokens(6), new=1, name=names[-1])
        kept = desk.engine.persistence.journal
        kept.attend(desk.engine.sessions)
        assert kept.unkept == frozenset()
    written(desk)
    assert len(os.listdir("/dev/fd")) <= before
    assert 0 < len(kept.store.open_files) <= MOST_FILES
    other = build_desk(build("llama"))
    assert set(journal(other, crashed(tmp_path / "alive", tmp_path / "dead"))) == set(names)
    forget(desk)
    forget(other)
