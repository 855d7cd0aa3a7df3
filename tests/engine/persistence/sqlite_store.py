"""A store of sessions in an SQLite database: another medium is one class. A committed image is with the system; a
checkpoint of the write-ahead log forces it."""

from __future__ import annotations

import io
import secrets
import sqlite3
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from djinn_jupyter._version import __version__
from djinn_jupyter.engine.store.image import SessionImage, TensorTable
from djinn_jupyter.engine.store.journal_file import JournalLabel, read_journal
from djinn_jupyter.engine.store.records import LABEL, SESSION, Writer
from djinn_jupyter.engine.store.session_store import ImageSource, LeftBehind

DATABASE = "sessions.db"
TABLE = "CREATE TABLE IF NOT EXISTS appended (number INTEGER PRIMARY KEY, session TEXT, aside INTEGER, content BLOB)"


class SqliteStore:
    """`forced` is called with an image that a loss of power leaves."""

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
