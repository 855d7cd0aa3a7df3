"""A journal that cannot be written says so in one sentence, where the user looks; nothing else suffers by it, and it is
made good as soon as that is possible."""

from __future__ import annotations

import errno
import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from djinn_jupyter.engine.store import journal as journals
from djinn_jupyter.engine.store import journal_file
from djinn_jupyter.engine.store import journal_file as journal_files
from djinn_jupyter.engine.store.journal import Journal
from djinn_jupyter.engine.store.journal_file import SUFFIX, Disk, JournalFile, read_journal_file
from djinn_jupyter.engine.store.locked_folder import LockedFolder
from djinn_jupyter.wire import requests as ask
from tests.device import DEVICE
from tests.engine.desk import Desk, build_desk, tokens
from tests.engine.persistence.crashes import crashed, forget, journal, written
from tests.engine.persistence.roundtrip import pair_of, reading, same
from tests.engine.persistence.test_journal import MODEL, files, files_in, images, same_hidden
from tests.families import build

PROMPT = tokens(9)


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Desk]:
    """An engine with a journal in `tmp_path / "alive"`, which tries again at once."""
    monkeypatch.setattr(journals, "RETRY_SECONDS", 0.0)
    desk, _ = pair_of("llama")
    journal(desk, tmp_path / "alive")
    yield desk
    monkeypatch.undo()
    forget(desk)


def said(desk: Desk) -> str | None:
    """Return the journal's trouble as the user sees it, once the writing thread is through."""
    kept = desk.engine.persistence.journal
    kept._thread.start(lambda: None).result()
    desk.engine.tick()
    return desk.engine.reading.statistics.journal_trouble


def refuse(number: int) -> Any:
    def refused(*_: Any) -> None:
        raise OSError(number, os.strerror(number))

    return refused


@contextmanager
def room_for(nbytes: int) -> Iterator[None]:
    """Make the system refuse a file's bytes beyond so many, as a full disk does, with another error number."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (nbytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def found_by_the_next(desk: Desk, tmp_path: Path, folder: str) -> Desk:
    other = build_desk(build("llama"))
    journal(other, crashed(tmp_path / "alive", tmp_path / folder))
    assert set(other.engine.sessions) == set(desk.engine.sessions)
    return other


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO])
def test_a_disk_that_refuses_is_told_of_and_forgotten_when_it_takes_again(
    number: int, desk: Desk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk refuses the bytes, to force them, or to force the name of a new file."""
    for name in "ab":
        desk.open(name)
        desk.run(PROMPT, 2, name)
    written(desk)
    assert said(desk) is None
    for owner, verb, name in (
        (JournalFile, "append", "a"),
        (journal_files, "force", "a"),
        (journal_files, "force_names", "c"),
    ):
        with monkeypatch.context() as broken:
            broken.setattr(owner, verb, refuse(number))
            if name == "c":
                desk.open(name)
            made = desk.run(PROMPT[:2], 1, name, extend=name == "a")
            assert len(made.tokens) == 1
            told = said(desk)
            assert told.startswith(f"The journal does not have the latest of session {name!r}: {os.strerror(number)}. ")
            assert told.count("\n") == 0
        written(desk)
        assert said(desk) is None
    other = found_by_the_next(desk, tmp_path, "after")
    for name in "abc":
        other.ask(ask.Open(session=name))
        assert same(reading(desk, name), reading(other, name))
    forget(other)


@pytest.mark.parametrize(
    ("error", "why"),
    [
        (MemoryError(), "there is no memory for a copy of it"),
        (RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory\nat alloc"), "can't allocate memory"),
    ],
)
def test_no_memory_for_an_image_ends_neither_the_engine_nor_the_session(
    error: Exception, why: str, desk: Desk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error comes when arrays have their numbers already and are not in the file."""
    desk.open()
    desk.stop_at(3)
    desk.run(PROMPT, 2)
    written(desk)

    def values(tensor: torch.Tensor) -> torch.Tensor:
        raise type(error)(*error.args)  # not the one of all tests, whose traceback would keep these tensors

    with monkeypatch.context() as broken:
        broken.setattr(desk.engine.persistence.journal.source, "values", values)
        desk.resume()
        told = said(desk)
        assert why in told
        assert "\n" not in told
    written(desk)
    assert said(desk) is None
    other = found_by_the_next(desk, tmp_path, "after")
    other.ask(ask.Open(session="a"))
    assert same(reading(desk), reading(other))
    forget(other)


def test_many_sessions_are_one_sentence(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(JournalFile, "append", refuse(errno.ENOSPC))
    for name in "abcde":
        desk.open(name)
    told = said(desk)
    assert "sessions 'a', 'b', 'c' and 2 more: No space left on device." in told
    desk.close(*"abcd")
    told = said(desk)
    assert "session 'e':" in told
    desk.close("e")
    assert said(desk) is None


def test_a_file_that_outgrows_the_disk_leaves_nothing_half_written(tmp_path: Path) -> None:
    """The system itself refuses, in the midst of a record."""
    session_files, taken = files_in(tmp_path), images(3)
    with room_for(4096), pytest.raises(OSError, match="File too large"):
        session_files.write(taken[0])
    assert files(tmp_path) == []
    session_files.write(taken[0])
    (path,) = files(tmp_path)
    with room_for(path.stat().st_size + 2000), pytest.raises(OSError, match="File too large"):
        session_files.write(taken[1])
    assert same_hidden(read_journal_file(path, MODEL, DEVICE).image, taken[0])
    session_files.write(taken[2])
    assert same_hidden(read_journal_file(path, MODEL, DEVICE).image, taken[2])
    assert list(tmp_path.iterdir()) == [path]
    session_files.close()


def test_an_engine_that_ends_while_its_journal_cannot_be_written_says_what_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    one = build_desk(build("llama"))
    journal(one, tmp_path / "alive")
    one.open()
    one.run(PROMPT, 2)
    written(one)
    monkeypatch.setattr(JournalFile, "append", refuse(errno.ENOSPC))
    one.run((), 3, extend=True)
    one.engine.close()
    monkeypatch.undo()
    assert "ERROR" in {record.levelname for record in caplog.records if "the latest of session 'a'" in record.message}
    other = build_desk(build("llama"))
    assert journal(other, tmp_path / "alive") == ("a",)
    assert len(other.session().tokens) == len(PROMPT) + 2
    forget(other)
    one.close_all()


def test_a_file_that_can_be_neither_read_nor_moved_keeps_no_engine_from_starting(
    desk: Desk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for name in "ab":
        desk.open(name)
        desk.run(PROMPT, 2, name)
    written(desk)
    left = crashed(tmp_path / "alive", tmp_path / "left")
    first, _ = sorted(left.rglob(f"*{SUFFIX}"))
    real = journal_file.read_journal_file

    def read(path: Path, *given: Any) -> Any:
        return refuse(errno.EIO)() if path == first else real(path, *given)

    monkeypatch.setattr(journal_file, "read_journal_file", read)
    monkeypatch.setattr(LockedFolder, "set_aside", refuse(errno.EROFS))
    other = build_desk(build("llama"))
    assert len(journal(other, left)) == 1
    assert "Input/output error" in caplog.text
    assert first.exists()
    forget(other)
    assert first.exists(), "it was not this engine's to forget"


def test_a_closed_session_whose_files_cannot_go_is_told_until_they_can(
    desk: Desk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    desk.open()
    written(desk)
    with monkeypatch.context() as broken:
        broken.setattr(Disk, "remove", refuse(errno.EIO))
        assert "'a'" in desk.ask(ask.Close(session="a")).not_kept
        assert "may come back" in (said(desk) or "")
    assert "The closed session 'a' may come back: Input/output error" in caplog.text
    desk.settle()
    assert said(desk) is None
    assert files(tmp_path / "alive") == []


def test_a_session_that_runs_on_is_forced_to_the_disk_from_time_to_time(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The clock advances a second with each image."""
    kept = desk.engine.persistence.journal
    assert isinstance(kept, Journal)
    desk.open()
    written(desk)
    desk.post(ask.Run(session="a", tokens=PROMPT, max_new_tokens=24, ignore_eos=True), replies := [])
    while desk.session().state != "running":
        desk.engine.tick()
    forced: list[int] = []
    with monkeypatch.context() as slow:
        slow.setattr(Journal, "_force", lambda self, name, account: forced.append(second))
        for second in range(12):
            slow.setattr(journals.time, "monotonic", lambda now=1e6 + second: now)
            kept._write(desk.session())
            kept._force_what_was_written()
    assert forced == [0, 5, 10]
    while not replies:
        desk.engine.tick()
