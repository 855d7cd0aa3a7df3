"""A journal keeps few files open, whatever the number of its sessions, and writes all where no more may be opened."""

from __future__ import annotations

import os
import resource
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from djinn_jupyter.engine.store.open_files import MOST_FILES, OpenFiles
from tests.engine.desk import build_desk, desk_of, tokens
from tests.engine.persistence.crashes import crashed, forget, journal, written
from tests.families import build


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
    for name in names:
        desk.open(name)
    before = len(os.listdir("/dev/fd"))
    with no_descriptor_left():
        desk.run(tokens(5), new=1, name=names[0])
        desk.run(tokens(6), new=1, name=names[-1])
        kept = desk.engine.persistence.journal
        kept.attend(desk.engine.sessions)
        assert kept.unkept == frozenset()
    written(desk)
    assert len(os.listdir("/dev/fd")) <= before
    assert len(kept.store.open_files) <= MOST_FILES
    other = build_desk(build("llama"))
    assert set(journal(other, crashed(tmp_path / "alive", tmp_path / "dead"))) == set(names)
    forget(desk)
    forget(other)
