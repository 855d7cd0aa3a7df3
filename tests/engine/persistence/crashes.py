"""The files that an engine leaves when it dies, and the engine that finds them."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec

from djinn_jupyter.engine.process.build import open_journal
from djinn_jupyter.engine.store import adopted
from djinn_jupyter.engine.store.records import SESSION, RecordReader, Torn
from djinn_jupyter.wire import requests as ask
from tests.engine.desk import Desk
from tests.engine.persistence.roundtrip import pair_of


def journal(desk: Desk, folder: Path) -> tuple[str, ...]:
    """Let an engine keep a journal in `folder`; the sessions that it found there."""
    desk.engine.persistence._journals = folder / "journals"
    return open_journal(desk.engine)


def written(desk: Desk) -> None:
    """Return when the journal has all that happened, also changes reported to no client, and has forced it."""
    kept = desk.engine.persistence.journal
    while True:
        kept.attend(desk.engine.sessions)
        kept._thread.start(lambda: None).result()
        if not kept._touched and not kept._unforced and kept._ended.empty():
            return


def crashed(folder: Path, into: Path) -> Path:
    """The files as they are at this moment, as a killed process leaves them: nothing is flushed or put in order."""
    shutil.copytree(folder, into)
    return into


def died(one: Desk, other: Desk, place: Path) -> None:
    """Let the second engine come up with what the first, whose journal is in `place`, had written as it died."""
    written(one)
    journal(other, crashed(place / "alive", place / "dead"))
    other.ask(ask.Open(session="a"))


@contextmanager
def pair_with_journal(place: Path, forgotten: Callable[[Desk], object]) -> Iterator[tuple[Desk, Desk]]:
    """Yield two engines of one model, the first with a journal in `place`. At the end both are empty for other tests,
    and `forgotten` takes out of each what the test added."""
    one, other = pair_of("llama")
    journal(one, place / "alive")
    yield one, other
    for desk in (one, other):
        if desk.engine.persistence.journal is not None:
            forget(desk)
        desk.close_all()
        forgotten(desk)


def last_image(path: Path) -> dict[str, Any]:
    """The last whole image in a file of the journal, its arrays as numbers."""
    found: dict[str, Any] = {}
    with path.open("rb") as file:
        reader = RecordReader(file)
        with suppress(Torn):
            while (record := reader.next()) is not None:
                if record.kind == SESSION:
                    found = msgspec.msgpack.decode(reader.body(record))
    return found


def forget(desk: Desk) -> None:
    """End the journal of an engine that other tests use as well."""
    desk.close_all()
    kept = desk.engine.persistence.journal
    kept.close(desk.engine.sessions, forget=True)
    desk.engine.persistence.journal = None


def pages_file(folder: Path) -> Path:
    """Return the file of the disk tier that an engine has left."""
    (found,) = folder.rglob(f"*{adopted.SUFFIX}")
    return found
