"""The journal keeps its promises in another store too: what was written survives a kill, what was forced a cut."""

from __future__ import annotations

import itertools
import shutil
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings

from djinn_jupyter.engine.store import journal as journals
from djinn_jupyter.engine.store.image import SessionImage
from djinn_jupyter.engine.store.journal import Journal
from djinn_jupyter.engine.store.persistence import Persistence
from tests.engine.desk import build_desk
from tests.engine.persistence.crashes import crashed, forget, journal, written
from tests.engine.persistence.roundtrip import future, reading, same
from tests.engine.persistence.sqlite_store import DATABASE, SqliteStore
from tests.engine.persistence.test_journal import CPU, MODEL
from tests.engine.persistence.test_power_loss import Closing, Kept, Office, equal, moves
from tests.engine.persistence.works import edited_and_steered
from tests.families import build


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


@pytest.mark.usefixtures("in_sqlite")
def test_a_closed_session_does_not_come_back_from_it(tmp_path: Path) -> None:
    one, other = build_desk(build("llama")), build_desk(build("llama"))
    journal(one, tmp_path / "alive")
    for name in "ab":
        one.open(name)
    written(one)
    one.close("a")
    written(one)
    assert journal(other, crashed(tmp_path / "alive", tmp_path / "dead")) == ("b",)
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
