"""A journal in a store: the store has what a reply reports, one engine alone writes it, and the next one finds it on
any machine. The store is in memory here; tests/process/test_stored_journal.py has engine processes and a server of
S3."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from djinn_jupyter.engine.process.build import open_journal
from djinn_jupyter.engine.store import journal as journals
from djinn_jupyter.engine.store import persistence as persistences
from djinn_jupyter.engine.store.journal_file import JournalFile
from djinn_jupyter.errors import ClaimLost, UsageError
from djinn_jupyter.link.spelling import spell_shared
from djinn_jupyter.remote.engine import lease as leases
from djinn_jupyter.remote.engine import object_store as stored_files
from djinn_jupyter.remote.engine.object_store import StoredFolder, take_stored_folder
from djinn_jupyter.remote.engine.objects import HeadClaims, HeadObject, JournalHead, StoredPart, require_compare_and_put
from djinn_jupyter.wire import requests as ask
from djinn_jupyter.wire.replies import Failed
from tests.engine.desk import ME, Desk, build_desk, tokens
from tests.engine.persistence.faulty_store import Line, Objects
from tests.engine.persistence.roundtrip import future, reading, same
from tests.engine.persistence.test_promises import DAY
from tests.engine.persistence.works import in_decode
from tests.families import build

ADDRESS = "s3://lab/djinn"
SLUG_FILES = ".session"
Start = Callable[[str], Desk]


@pytest.fixture
def objects() -> Objects:
    return Objects()


@pytest.fixture
def start(objects: Objects, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Start]:
    """Start an engine on a machine of that name, with a journal in the store. It does not wait for others."""
    monkeypatch.setattr(journals, "RETRY_SECONDS", 0.0)
    monkeypatch.setattr(stored_files, "RETRY_SECONDS", 0.0)
    monkeypatch.setattr(leases, "WAIT_SECONDS", 0.0)
    monkeypatch.setattr(persistences, "S3Store", lambda address: Line(objects, address))
    desks: list[Desk] = []

    def start(machine: str) -> Desk:
        desk = build_desk(build("llama"))
        desk.engine.persistence._store = ADDRESS
        desk.engine.persistence._journals = tmp_path / machine
        open_journal(desk.engine)
        desks.append(desk)
        return desk

    yield start
    for desk in desks:
        desk.engine.abandon()


def own(desk: Desk) -> StoredFolder:
    return desk.engine.persistence.journal.store


def line(desk: Desk) -> Line:
    return own(desk)._stored._store


def stored(objects: Objects, at: str) -> dict[str, bytes]:
    """Return the files of a journal as the next engine would find them."""
    below = Line(Objects(), at)
    below.objects.now = objects.now
    files = HeadObject(below).read().files
    return {name: b"".join(objects.now[one.object][0] for one in parts) for name, parts in files.items()}


def test_the_store_has_what_a_reply_reports_when_it_goes_out(start: Start, objects: Objects) -> None:
    desk = start("a")
    differs: list[list[str]] = []

    def reply(reply: Any) -> None:
        assert not isinstance(reply, Failed)
        assert reply.not_kept is None
        here = {path.name: path.read_bytes() for path in own(desk).files(SLUG_FILES)}
        there = stored(objects, ADDRESS)
        differs.append([name for name in here.keys() | there.keys() if here.get(name) != there.get(name)])

    for number, request in enumerate(DAY):
        desk.engine.submit(request(), ME, reply)
        while len(differs) == number:
            desk.engine.tick()
    assert differs == [[] for _ in DAY]


def test_a_session_goes_on_bit_for_bit_on_another_machine_and_the_older_engine_stops(start: Start) -> None:
    older = start("a")
    older.open()
    in_decode(older)
    before = reading(older)
    newer = start("b")
    own(older)._lease.look()
    with pytest.raises(ClaimLost, match=r"Another engine \(process \d+ on .*\) has taken over the sessions"):
        older.engine.tick()
    assert newer.describe().exactness == "recomputed"
    newer.ask(ask.Open(session="a"))
    assert same(before, reading(newer))
    twin = build_desk(build("llama"))
    twin.open()
    in_decode(twin)
    assert same(future(twin), future(newer))


def test_an_engine_that_was_taken_over_answers_nothing_that_the_store_refused(start: Start) -> None:
    older, replies = start("a"), list[Any]()
    start("b")
    older.post(ask.Open(session="a"), replies)
    with pytest.raises(ClaimLost, match="has taken over"):
        older.engine.tick()
    assert replies == []


def test_a_store_that_is_lost_is_told_in_one_sentence_and_made_good(start: Start, objects: Objects) -> None:
    desk = start("a")
    desk.open()
    line(desk).cut = True
    stopped = in_decode_told(desk)
    assert stopped.not_kept == (
        f"The journal does not have the latest of session 'a': {line(desk).address} could not be written to (Could not "
        "connect to the endpoint). It is tried again; until then an engine that dies loses what was done since."
    )
    before = reading(desk)
    line(desk).cut = False
    while desk.engine.persistence.trouble is not None:
        desk.engine.tick()
    assert desk.resume().not_kept is None
    desk.back()
    other = start("b")
    other.ask(ask.Open(session="a"))
    assert other.ask(ask.ReadHistory(session="a")) == desk.ask(ask.ReadHistory(session="a"))
    assert before[0] == "paused"


def in_decode_told(desk: Desk) -> Any:
    desk.stop_at(3, when="step in (1, 2, 4)")
    return desk.run(tokens(9), new=6)


def test_a_session_that_could_not_be_closed_in_the_store_is_told_until_it_is(start: Start, objects: Objects) -> None:
    desk = start("a")
    desk.open()
    desk.run(tokens(5), new=1)
    line(desk).cut = True
    told = desk.ask(ask.Close(session="a", force=True))
    assert told.not_kept == (
        "What is closed may come back, because its files cannot be removed: 'a'. It is tried again."
    )
    line(desk).cut = False
    while desk.engine.persistence.trouble is not None:
        desk.engine.tick()
    assert stored(objects, ADDRESS) == {}
    assert list(start("b").engine.sessions) == []


def test_an_engine_that_ends_in_order_leaves_no_claim_and_nothing_here(
    start: Start, objects: Objects, tmp_path: Path
) -> None:
    desk = start("a")
    desk.open()
    desk.run(tokens(5), new=1)
    journal = desk.engine.persistence.journal
    journal.close(desk.engine.sessions, forget=False)
    desk.engine.persistence.journal = None
    head = HeadObject(Line(objects)).read()
    assert (head.claims, len(head.files)) == ((), 1)
    assert not list((tmp_path / "a").rglob(f"*{SLUG_FILES}"))


# ------------------------------------------------------------------------------------------------ the store's files


@pytest.fixture
def folder(objects: Objects, tmp_path: Path) -> Iterator[StoredFolder]:
    made = take_stored_folder(Line(objects), tmp_path / "here", ".pages", lambda: None)
    yield made
    made.release()


def written(folder: StoredFolder, name: str, *texts: bytes) -> JournalFile:
    file = JournalFile(folder.folder / name, (), folder.durability)
    for text in texts:
        file.append(lambda writer, text=text: writer.record(b"TEXT", text))  # type: ignore[misc]
        file.force()
    return file


def test_a_session_that_is_closed_while_it_is_forced_does_not_come_back(folder: StoredFolder, objects: Objects) -> None:
    line = folder._stored._store
    assert isinstance(line, Line)
    written(folder, "a.0.session", b"one")
    file = JournalFile(folder.folder / "a.1.session", (folder.folder / "a.0.session",), folder.durability)
    file.append(lambda writer: writer.record(b"TEXT", b"two"))
    line.before_put = lambda name: folder.durability.remove((*file.replaced, file.path))
    file.force()
    assert HeadObject(Line(objects)).read().files == {}


@pytest.mark.parametrize("ends", [True, False])
def test_the_newer_waits_for_a_lease_of_another_machine_that_has_not_ended(
    ends: bool, objects: Objects, monkeypatch: pytest.MonkeyPatch
) -> None:
    older, waited = HeadClaims(HeadObject(Line(objects)), ADDRESS), list[float]()
    epoch = older.claim(leases.Claimant(host="node-b", boot="another", space="", pid=4711, mark=None))
    newer = leases.claim(HeadClaims(HeadObject(Line(objects)), ADDRESS), lambda: None)
    if ends:
        older.end(epoch)
    monkeypatch.setattr(leases.time, "monotonic", lambda: sum(waited))
    monkeypatch.setattr(leases.time, "sleep", waited.append)
    assert leases.await_earlier(newer) == ({} if ends else {1: False})
    assert (sum(waited) > leases.LEASE_SECONDS) is not ends
    newer.stop()


def test_many_small_objects_become_one(folder: StoredFolder, objects: Objects) -> None:
    file = written(folder, "a.0.session", *(b"%d" % number for number in range(200)))
    parts = HeadObject(Line(objects)).read().files["a.0.session"]
    assert len(parts) <= stored_files.MOST_PARTS
    assert b"".join(objects.now[one.object][0] for one in parts) == file.path.read_bytes()
    assert len(objects.now) == 1 + len(parts)  # with the head: what was put once more is gone


def test_what_an_engine_was_killed_over_is_deleted_by_the_next(objects: Objects, tmp_path: Path) -> None:
    first = take_stored_folder(Line(objects), tmp_path / "a", ".pages", lambda: None)
    written(first, "a.0.session", b"one")
    objects.put("1/b.0.session/0-9", b"unnamed")
    objects.put("notes.txt", b"somebody's")
    first.release()
    second = take_stored_folder(Line(objects), tmp_path / "b", ".pages", lambda: None)
    assert "1/b.0.session/0-9" not in objects.now
    assert "notes.txt" in objects.now
    assert [path.name for path in second.files(SLUG_FILES)] == ["a.0.session"]
    second.release()


def test_an_object_that_is_gone_costs_what_was_written_since(
    objects: Objects, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    first = take_stored_folder(Line(objects), tmp_path / "a", ".pages", lambda: None)
    file = written(first, "a.0.session", b"one", b"two")
    whole = file.path.read_bytes()
    parts = HeadObject(Line(objects)).read().files["a.0.session"]
    del objects.now[parts[1].object]
    first.release()
    with caplog.at_level(logging.WARNING):
        second = take_stored_folder(Line(objects), tmp_path / "b", ".pages", lambda: None)
    assert f"{ADDRESS}/{parts[1].object} is gone" in caplog.text
    assert (second.folder / "a.0.session").read_bytes() == whole[: parts[0].nbytes]
    second.release()


def test_a_file_that_cannot_be_used_is_set_aside_in_the_store(
    folder: StoredFolder, objects: Objects, caplog: pytest.LogCaptureFixture
) -> None:
    file = written(folder, "a.0.session", b"one")
    whole = file.path.read_bytes()
    folder.put_aside(file.path, ValueError("of another model"))
    assert f"set aside as {ADDRESS}/aside/1/a.0.session: of another model" in caplog.text
    assert objects.now["aside/1/a.0.session"][0] == whole
    assert HeadObject(Line(objects)).read().files == {}


@pytest.mark.parametrize("name", ["../a.0.session", "/etc/a.session", "a.pages", ".session"])
def test_a_head_that_names_another_file_is_refused(name: str, objects: Objects, tmp_path: Path) -> None:
    head = HeadObject(Line(objects))
    head.change(lambda there: JournalHead(files={name: (StoredPart("1/x", 1),)}))
    objects.put("1/x", b"x")
    with pytest.raises(OSError, match="which is no file of a journal"):
        take_stored_folder(Line(objects), tmp_path / "here", ".pages", lambda: None)
    assert not [path for path in tmp_path.rglob("*") if path.suffix == SLUG_FILES]


@pytest.mark.parametrize(
    ("content", "said"), [(b"{", "is no head of a journal"), (b'{"format": 2}', "of another version of Djinn")]
)
def test_a_head_that_is_none_of_ours_is_refused_and_stays(content: bytes, said: str, objects: Objects) -> None:
    objects.put("head", content)
    with pytest.raises(OSError, match=said):
        HeadObject(Line(objects)).change(lambda head: JournalHead(epoch=9))
    assert objects.now["head"][0] == content


# ------------------------------------------------------------------------------------------------------ what is refused


class Heedless(Line):
    def compare_and_put(self, name: str, content: bytes, tag: str | None) -> str:
        return self.objects.put(name, content)


class HeedsAbsence(Line):
    def compare_and_put(self, name: str, content: bytes, tag: str | None) -> str:
        return super().compare_and_put(name, content, tag) if tag is None else self.objects.put(name, content)


@pytest.mark.parametrize("kind", [Heedless, HeedsAbsence])
def test_a_store_that_does_not_heed_a_condition_is_refused(kind: type[Line], objects: Objects) -> None:
    require_compare_and_put(Line(objects))
    with pytest.raises(UsageError, match=r"The store of s3://lab/djinn has no atomic compare-and-put"):
        require_compare_and_put(kind(objects))
    assert objects.now == {}


@pytest.mark.parametrize("address", ["memory://lab", "file:///lab", "gs://lab/x", "az://lab/x", "s3://key:word@lab/x"])
def test_a_journal_is_refused_where_no_atomic_compare_and_put_is_known(address: str) -> None:
    with pytest.raises(
        UsageError, match=r"^A journal lies in a folder .* no atomic compare-and-put, by which one engine"
    ):
        spell_shared(address)


def test_an_address_of_s3_and_a_folder_are_taken(tmp_path: Path) -> None:
    assert spell_shared("s3://lab/djinn/") == ADDRESS
    assert spell_shared(str(tmp_path)) == str(tmp_path)
