"""The state that a reply reports is in the journal for the next engine when the reply goes out. Where it cannot be, the
reply says so, and the state is written as soon as there is room, wherever the session's bytes are by then."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from djinn_jupyter.engine.store import journal as journals
from djinn_jupyter.engine.store.journal_file import JournalFiles
from djinn_jupyter.errors import ClaimLost
from djinn_jupyter.remote.engine.lease import ClaimFiles, LeasedFolder, claim
from djinn_jupyter.wire import requests as ask
from djinn_jupyter.wire.nouns import Sampling
from djinn_jupyter.wire.replies import Failed
from tests.engine.desk import ME, Desk, build_desk, tokens
from tests.engine.persistence.crashes import crashed, forget, journal, written
from tests.engine.persistence.roundtrip import future, pair_of, reading, same
from tests.families import build

PROMPT = tokens(9)


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Desk]:
    """An engine with a journal in `tmp_path / "alive"`, which tries again at once."""
    monkeypatch.setattr(journals, "RETRY_SECONDS", 0.0)
    desk, other = pair_of("llama")
    journal(desk, tmp_path / "alive")
    yield desk
    forget(desk)
    if other.engine.persistence.journal is not None:
        forget(other)


def the_next(folder: Path) -> Desk:
    _, other = pair_of("llama")
    if other.engine.persistence.journal is not None:
        forget(other)
    journal(other, folder)
    return other


@contextmanager
def nothing_forced(desk: Desk) -> Iterator[None]:
    """Let the disk confirm nothing."""
    kept, slow = desk.engine.persistence.journal, threading.Event()
    kept._thread.start(slow.wait)
    yield
    slow.set()


@contextmanager
def forced_later() -> Iterator[None]:
    """Let the disk confirm nothing of any journal until this ends, also of one that is opened within."""
    force, confirms = journals._force, threading.Event()

    def late(files: Any, pages: Any) -> None:
        confirms.wait()
        force(files, pages)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(journals, "_force", late)
        try:
            yield
        finally:
            confirms.set()


@contextmanager
def full_disk() -> Iterator[None]:
    """Fill the disk: files can be read and removed, and nothing can be written to the journal."""

    def refused(descriptor: int, part: bytes, at: int) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "pwrite", refused)
        yield


Told = tuple[Path, list[Any]]


def asked(desk: Desk, request: ask.Request, into: Path) -> Told:
    """Return the journal at the moment in which the reply goes out, and the session's state by then."""
    told: list[Told] = []
    folder = desk.engine.persistence.journal.store.folder.parent.parent

    def reply(reply: Any) -> None:
        told.append((crashed(folder, into / "journals").parent, seen(desk)))

    desk.engine.submit(request, ME, reply)
    while not told:
        desk.engine.tick()
    return told[0]


def seen(desk: Desk) -> list[Any]:
    """Return the readings of every session that need no pass."""
    return [
        (
            s.name, s.state, list(s.tokens), s.committed, list(s.edits), s.numbers_given,
            [(str(stop.frame.tap.site), stop.frame.step, len(stop.tokens)) for stop in s.history.stops],
            s.history.present, list(s.rules), sorted(s.breakpoints), sorted(s.watches),
        )
        for s in sorted(desk.engine.sessions.values(), key=lambda s: s.name)
    ]  # fmt: skip


DAY: list[Callable[[], ask.Request]] = [
    lambda: ask.Open(session="a"),
    lambda: ask.SetBreakpoint(session="a", site="3", when="step in (0, 2)"),
    lambda: ask.Run(session="a", tokens=PROMPT, max_new_tokens=4, ignore_eos=True),
    lambda: ask.Steer(session="a", site="resid_post.1", edit=half()),
    lambda: ask.ApplyEdit(session="a", edit=half()),
    lambda: ask.Step(session="a"),
    lambda: ask.Resume(session="a"),
    lambda: ask.Fork(session="a", name="b"),
    lambda: ask.Back(session="b"),
    lambda: ask.RevertEdits(session="b"),
    lambda: ask.Resume(session="a", free=True),
    lambda: ask.Close(session="a"),
    lambda: ask.Run(
        session="b", tokens=PROMPT, max_new_tokens=3, ignore_eos=True, sampling=Sampling(temperature=1.0, seed=3)
    ),
]


def half() -> Any:
    from djinn_jupyter.wire.edits import Scale

    return Scale(factor=0.5)


def test_each_reply_of_a_day_is_kept_when_it_goes_out_though_nothing_is_ever_forced(desk: Desk, tmp_path: Path) -> None:
    with nothing_forced(desk):
        told = [asked(desk, request(), tmp_path / str(number)) for number, request in enumerate(DAY)]
    for number, (folder, said) in enumerate(told):
        found = the_next(folder)
        assert seen(found) == said, DAY[number]()
    assert found.engine.reading.statistics.recovered_recomputed == 1


def test_what_could_not_be_kept_is_said_in_each_reply_and_written_when_there_is_room(
    desk: Desk, tmp_path: Path
) -> None:
    """This holds also for sessions that have left the device meanwhile, for the host and for the disk."""
    for name in ("here", "host", "disk"):
        desk.open(name)
        desk.stop_at(3, name=name, when="step in (0, 2)")
        assert desk.run(PROMPT, 4, name).not_kept is None
    before = crashed(tmp_path / "alive", tmp_path / "before")
    with full_disk():
        for name in ("here", "host", "disk"):
            stopped = desk.resume(name)
            assert f"'{name}'" in stopped.not_kept
            assert "No space left on device" in stopped.not_kept
            assert desk.edit(name=name).not_kept is not None
            assert desk.ask(ask.ReadHistory(session=name)).not_kept is None, "it did nothing"
    # room for pages comes first, and the journal's turn when the sessions have left
    kept = desk.engine.persistence.journal
    with full_only_for(kept):
        for name in ("host", "disk"):
            desk.swap_out(name, name)
        assert {one.name for one in desk.engine.reading.sessions if not one.kept} == {"here", "host", "disk"}
        assert desk.engine.watchful
    found = the_next(before)
    assert {len(s.history.stops) for s in found.engine.sessions.values()} == {1}
    desk.settle()
    assert all(one.kept for one in desk.engine.reading.sessions)
    assert desk.engine.reading.statistics.journal_trouble is None
    found = the_next(crashed(tmp_path / "alive", tmp_path / "room"))
    assert seen(found) == seen(desk)
    for name in ("here", "host", "disk"):
        for one in (desk, found):
            one.ask(ask.Open(session=name))
            one.swap_in(name)
        assert same(reading(desk, name), reading(found, name))
        assert same(future(desk, name), future(found, name))


@contextmanager
def full_only_for(kept: Any) -> Iterator[None]:
    def refused(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with pytest.MonkeyPatch.context() as patch:
        for account in kept._accounts.values():
            patch.setattr(type(account.stored), "write", refused)
        yield


def test_an_ordered_end_keeps_what_had_left_while_the_disk_was_full(tmp_path: Path) -> None:
    """R4: a session acknowledged after the disk was full that had left the device was never written again."""
    one = build_desk(build("llama"))
    journal(one, tmp_path / "alive")
    one.open()
    one.run(PROMPT, 2)
    with full_only_for(one.engine.persistence.journal):
        assert one.run((), 30, extend=True).not_kept is not None
        one.swap_out()
    made = list(one.session().tokens)
    one.engine.close()
    other = build_desk(build("llama"))
    assert journal(other, tmp_path / "alive") == ("a",)
    assert list(other.session().tokens) == made
    assert other.session().exactness == "exact"
    forget(other)
    one.close_all()


def test_a_closed_session_is_gone_when_its_reply_goes_out(desk: Desk, tmp_path: Path) -> None:
    """The same holds for a session whose file is being replaced at that moment."""
    for name in "ab":
        desk.open(name)
        desk.run(PROMPT, 2, name)
    with nothing_forced(desk):
        kept = desk.engine.persistence.journal
        kept._write(desk.session("a"), compact=True)
        assert len(list(tmp_path.rglob("*.session"))) == 3
        folder, _ = asked(desk, ask.Close(session="a"), tmp_path / "closed")
    assert [one.name for one in the_next(folder).engine.reading.sessions] == ["b"]


def test_a_new_file_that_was_not_finished_does_no_harm(desk: Desk, tmp_path: Path) -> None:
    desk.open()
    desk.run(PROMPT, 2)
    written(desk)
    kept = desk.engine.persistence.journal
    with nothing_forced(desk):
        kept._write(desk.session(), compact=True)
        whole = crashed(tmp_path / "alive", tmp_path / "whole")
    older, newer = sorted(whole.rglob("*.session"))
    content = newer.read_bytes()
    for cut in (0, 7, 40, len(content) - 1, len(content)):
        dead = crashed(tmp_path / "whole", tmp_path / f"cut-{cut}")
        (dead / newer.relative_to(whole)).write_bytes(content[:cut])
        with forced_later():
            found = the_next(dead)
            assert seen(found) == seen(desk)
            assert not list(dead.rglob("aside"))
            assert len(list(dead.rglob("*.session"))) == (2 if cut == len(content) else 1)
        found.engine.persistence.journal._thread.start(lambda: None).result()
        used = newer if cut == len(content) else older
        assert [path.name for path in dead.rglob("*.session")] == [used.name], "the older goes when the newer is forced"
        forget(found)
    assert older.name < newer.name


# --- a shared journal -------------------------------------------------------------------------------------------------


@pytest.fixture
def sharing(tmp_path: Path) -> Iterator[Desk]:
    """An engine with a shared journal."""
    sharing = build_desk(build("llama"))
    sharing.engine.persistence._shared = True
    journal(sharing, tmp_path)
    yield sharing
    sharing.engine.abandon()


def own_folder(sharing: Desk) -> LeasedFolder:
    return sharing.engine.persistence.journal.store


def test_the_disk_has_what_a_reply_reports_when_it_goes_out(sharing: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    lengths: dict[Path, int] = {}
    force = JournalFiles.force

    def noted(files: JournalFiles) -> None:
        length = files._file.length if files._file else 0
        force(files)
        if files._file:
            lengths[files._file.path] = length

    monkeypatch.setattr(JournalFiles, "force", noted)
    unforced: list[list[str]] = []

    def reply(reply: Any) -> None:
        there = {path: path.stat().st_size for path in own_folder(sharing).files(".session")}
        assert not isinstance(reply, Failed)
        unforced.append([path.name for path, size in there.items() if lengths.get(path) != size])

    for number, request in enumerate(DAY):
        sharing.engine.submit(request(), ME, reply)
        while len(unforced) == number:
            sharing.engine.tick()
    assert unforced == [[] for _ in DAY]


def test_a_claim_that_is_lost_while_the_reply_is_written_holds_it_back(
    sharing: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, replies, later = own_folder(sharing), list[Any](), list[Any]()
    write = journals.Journal.write

    def taken_over_meanwhile(kept: journals.Journal, *what: Any) -> None:
        write(kept, *what)
        if not later:
            later.append(claim(ClaimFiles(folder.folder.parent), lambda: None))
            folder._lease.look()

    monkeypatch.setattr(journals.Journal, "write", taken_over_meanwhile)
    sharing.post(ask.Open(session="b"), replies)
    with pytest.raises(ClaimLost, match="has taken over the sessions of this one"):
        sharing.engine.tick()
    assert replies == []
    later[0].stop()
