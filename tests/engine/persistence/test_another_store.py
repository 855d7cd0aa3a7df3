"""The journal keeps its promises in another store too: what was written survives a kill, what was forced a cut."""

from __future__ import annotations

import io
import itertools
import secrets
import shutil
import sqlite3
import tempfile
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings

from djinn_jupyter._version import __version__
from djinn_jupyter.engine.store import journal as journals
from djinn_jupyter.engine.store.image import SessionImage, TensorTable
from djinn_jupyter.engine.store.journal import Journal
from djinn_jupyter.engine.store.journal_file import JournalLabel, read_journal
from djinn_jupyter.engine.store.persistence import Persistence
from djinn_jupyter.engine.store.records import LABEL, SESSION, Writer
from djinn_jupyter.engine.store.session_store import ImageSource, LeftBehind
from tests.engine.desk import build_desk
from tests.engine.persistence.crashes import crashed, forget, journal, written
from tests.engine.persistence.roundtrip import future, reading, same
from tests.engine.persistence.test_journal import CPU, MODEL
from tests.engine.persistence.test_power_loss import Closing, Kept, Office, equal, moves
from tests.engine.persistence.works import edited_and_steered
from tests.families import build

DATABASE = "sessions.db"
TABLE = "CREATE TABLE IF NOT EXISTS appended (number INTEGER PRIMARY KEY, session TEXT, aside INTEGER, content BLOB)"


class SqliteStore:
    """Another store is one class: a committed image is with the system, a checkpoint of the write-ahead log forces it.
    `forced` is called with an image that a loss of power leaves."""

    forces_first = False

    def __init__(self, folder: Path, forced: Callable[[SessionImage], Any] = lambda image: None) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self.forced = folder, forced
        self.left_out: dict[str, str] = {}
        self.alone = threading.RLock()
        self._database = sqlite3.connect(folder / DATABASE, check_same_thread=False, isolation_level=None)
        for pragma in ("journal_mode=WAL", "synchronous=NORMAL", "wal_autocheckpoint=0"):
            self._database.execute(f"PRAGMA {pragma}").fetchall()
        self.do(TABLE)

    def do(self, statement: str, *values: Any) -> list[Any]:
        with self.alone:
            try:
                return self._database.execute(statement, values).fetchall()
            except sqlite3.Error as error:
                raise OSError(str(error)) from error

    def recover(self, source: ImageSource) -> list[LeftBehind]:
        found = []
        for (stem,) in self.do("SELECT session FROM appended WHERE NOT aside GROUP BY session ORDER BY max(number)"):
            rows = self.do("SELECT content FROM appended WHERE session = ? ORDER BY number", stem)
            file = io.BytesIO(b"".join(content for (content,) in rows))
            try:
                image = read_journal(file, stem, source.model, source.device).image
            except Exception:  # noqa: BLE001  one session's error must not stop the others
                self.do("UPDATE appended SET aside = 1 WHERE session = ?", stem)
            else:
                found.append(LeftBehind(image=image, stored=SqliteSession(self, stem, source)))
        return found

    def begin(self, source: ImageSource) -> SqliteSession:
        return SqliteSession(self, secrets.token_hex(8), source)

    def leave_out(self, found: LeftBehind, why: Exception) -> None:
        assert isinstance(found.stored, SqliteSession)
        self.left_out[found.image.name] = str(why)
        self.do("UPDATE appended SET aside = 1 WHERE session = ?", found.stored.stem)

    def files(self, suffix: str) -> list[Path]:
        return sorted(self.folder.glob(f"*{suffix}"))

    def force_names(self) -> None:
        self.do("PRAGMA wal_checkpoint(FULL)")

    def require(self) -> None:
        """Do nothing: the tests open one at a time."""

    def release(self) -> None:
        self._database.close()


class SqliteSession:
    def __init__(self, store: SqliteStore, stem: str, source: ImageSource) -> None:
        self.stem, self._store, self._source = stem, store, source
        self._table, self._anew, self._bytes = TensorTable(source.device), True, 0
        self._last: SessionImage | None = None

    @property
    def wasteful(self) -> bool:
        return self._bytes > 2 * self._table.bytes_met + 1000

    def write(self, image: SessionImage, *, compact: bool = False) -> None:
        anew = compact or self._anew
        table = TensorTable(self._source.device) if anew else self._table
        writer = Writer(file := io.BytesIO())
        if anew:
            writer.begin()
            label = JournalLabel(version=__version__, model=self._source.model)
            writer.record(LABEL, msgspec.msgpack.encode(label))
        body, fresh = table.encode(image)
        try:
            for head, tensor in fresh:
                writer.array(head, self._source.values(tensor))
            writer.record(SESSION, body)
            self._put(file.getvalue(), anew=anew)
        except BaseException:
            table.take_back()
            raise
        table.forget_unmet()
        self._table, self._anew, self._last = table, False, image
        self._bytes = writer.written if anew else self._bytes + writer.written

    def _put(self, content: bytes, *, anew: bool) -> None:
        store = self._store
        with store.alone:
            store.do("BEGIN")
            try:
                if anew:
                    store.do("DELETE FROM appended WHERE session = ?", self.stem)
                store.do("INSERT INTO appended (session, aside, content) VALUES (?, 0, ?)", self.stem, content)
                store.do("COMMIT")
            except BaseException:
                store.do("ROLLBACK")
                raise

    def begin_anew(self) -> None:
        self._anew = True

    def force(self) -> None:
        image = self._last
        self._store.force_names()
        if image is not None:
            self._store.forced(image)

    def remove(self) -> None:
        self._store.do("DELETE FROM appended WHERE session = ?", self.stem)

    def close(self) -> None:
        """Do nothing: the database is the store's."""


@pytest.fixture
def in_sqlite(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Persistence, "_take_store", lambda self, root, wake: SqliteStore(root))


@pytest.mark.usefixtures("in_sqlite")
def test_a_session_comes_back_from_it_bit_for_bit_after_a_kill(tmp_path: Path) -> None:
    one, other = build_desk(build("llama")), build_desk(build("llama"))
    journal(one, tmp_path / "alive")
    one.open()
    edited_and_steered(one)
    written(one)
    assert journal(other, crashed(tmp_path / "alive", tmp_path / "dead")) == ("a",)
    assert same(reading(one), reading(other))
    assert same(future(one), future(other))
    for desk in (one, other):
        forget(desk)


@dataclass(slots=True)
class Moments:
    """What a kill and a cut leave at each moment at which something is said (`Office`)."""

    root: Path
    said: list[Any] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    office: Office | None = None
    numbers: Any = field(default_factory=itertools.count)

    def say(self, what: Any) -> None:
        self.said.append(what)
        for cut in (False, True):
            self.wrong += self._lost(self._left(cut=cut))

    def _left(self, *, cut: bool) -> Path:
        """Return the files as they are; of a cut without the log, of which nothing may have been forced."""
        left = self.root / f"left-{next(self.numbers)}"
        left.mkdir()
        for path in (self.root / "alive").iterdir():
            if not (cut and path.name != DATABASE):
                shutil.copyfile(path, left / path.name)
        return left

    def _lost(self, left: Path) -> list[str]:
        store = SqliteStore(left)
        images = [found.image for found in store.recover(opened(left).source)]
        store.release()
        found = {image.owner: image.tokens[0] for image in images}
        kept = {one.uid: one.version for one in self.said if isinstance(one, Kept)}
        closing = {one.uid: one.done for one in self.said if isinstance(one, Closing)}
        wrong = [f"{uid} was closed" for uid, done in closing.items() if done and uid in found]
        wrong += [f"{uid} is lost" for uid, at in kept.items() if uid not in closing and found.get(uid, -1) < at]
        known = self.office.images
        return wrong + [
            f"{one.owner} has other bits" for one in images if not equal(one, known[one.owner, one.tokens[0]])
        ]


def opened(folder: Path, forced: Any = lambda image: None) -> Journal:
    return Journal(SqliteStore(folder, forced), MODEL, CPU, lambda: None)


class SqliteOffice(Office):
    """Engines, one after the other, on a database."""

    def begin(self) -> None:
        moments: Any = self.disk
        moments.office = self

        def forced(image: SessionImage) -> None:
            moments.say(Kept(uid=image.owner, version=image.tokens[0]))

        self.journals = [opened(moments.root / "alive", forced)]
        for found in self.journals[0].store.recover(self.journals[0].source):
            self.journals[0].adopt(found.image.name, found)
            self.change(found.image.name, 0, "idle")

    def kill(self) -> None:
        """End one engine with nothing in order; another goes on with what is there."""
        self.end()
        self.begin()

    def end(self) -> None:
        for one in self.journals:
            one._thread.close()
            one.store.release()
        self.journals = []

    def neighbour(self, name: str) -> None:
        """Do nothing: two engines do not share a database."""


@settings(max_examples=25, deadline=None)
@given(played=moves)
def test_what_was_written_survives_a_kill_and_what_was_forced_a_cut(played: list[Any]) -> None:
    with tempfile.TemporaryDirectory(prefix="djt-") as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(journals, "dump_session", lambda session, rows, frames: session.image)
        patch.setattr(journals, "RUNNING_SECONDS", 0.0)
        patch.setattr(journals, "RUNNING_TAKE_ONE_IN", 0)
        moments: Any = Moments(Path(folder))
        office = SqliteOffice(moments)
        for verb, *given_to in played:
            getattr(office, verb)(*given_to)
        office.write()
        office.end()
        assert moments.wrong == []
