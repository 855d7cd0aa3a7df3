"""A loss of power at any moment: an engine starts from the rest of its journal, with every session as it was when
it was last forced to the disk or later, to the last bit."""

from __future__ import annotations

import itertools
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from threading import Event
from types import SimpleNamespace
from typing import Any, Final

import msgspec
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from djinn_jupyter.engine.store import journal as journals
from djinn_jupyter.engine.store import journal_file as journal_files
from djinn_jupyter.engine.store import journal_file as journal_folders
from djinn_jupyter.engine.store import locked_folder as locked_folders
from djinn_jupyter.engine.store.checkpoint_files import CheckpointFolder, describe
from djinn_jupyter.engine.store.image import FrameImage, HistoryImage, PassLogImage, SessionImage
from djinn_jupyter.engine.store.journal import Journal
from djinn_jupyter.engine.store.journal_file import JournalFiles
from djinn_jupyter.engine.store.persistence import Persistence
from djinn_jupyter.engine.store.values import keep
from tests.engine.persistence.power import Cut, Disk, Said, after_cut, not_waited_for
from tests.engine.persistence.test_journal import CPU, MODEL

MODELS: Final = "models--demo"
numbers = itertools.count()


@pytest.fixture(scope="module", autouse=True)
def quick() -> Iterator[None]:
    with not_waited_for():
        yield


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """The write of an image that was to be forced has returned."""

    uid: str
    version: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Closing:
    """A session is about to be forgotten, or has been."""

    uid: str
    done: bool


@dataclass(slots=True)
class Sitting:
    """A session as the journal sees it: its present state is its image."""

    image: SessionImage
    state: str = "idle"
    residence: Any = field(default_factory=lambda: SimpleNamespace(present=True))

    @property
    def name(self) -> str:
        return self.image.name

    @property
    def uid(self) -> str:
        return self.image.owner


def image_of(name: str, uid: str, version: int, frames: tuple[FrameImage, ...]) -> SessionImage:
    """Return an image; its first token is its number among the session's images."""
    return SessionImage(
        name=name, owner=uid, paused=False, tokens=(version, *range(version)), committed=0, exactness="exact",
        frames=frames, lines=(), frame=None, line=None,
        history=HistoryImage(kept=8, stops=(), present=None, dropped=0),
        edits=(), breakpoints=(), rules=(), watches=(), numbers_given=0, logits=None, journal={}, states=None,
        trail=PassLogImage(rules=(), passes=(), edited=()), rows=None, places=None, lost=False, stop=None,
        edition=None, rule_numbers_given=0, runs=0, forked_from=None, edits_made=(), attention=None, adapter=None,
        shares={}, answered=(), let_go={}, holder=None, moving=None,
    )  # fmt: skip


def frame_of(hidden: torch.Tensor) -> FrameImage:
    return FrameImage(
        tokens=(1,), committed=0, step=0, boundary=0, hidden=hidden, tap=None, raw=None, inlays=(),
        shared=keep({}, ""), states=None, start_states=None,
    )  # fmt: skip


def equal(one: SessionImage, other: SessionImage) -> bool:
    """True if both are equal to the last bit."""
    plain = [msgspec.structs.replace(image, frames=()) for image in (one, other)]
    return plain[0] == plain[1] and all(
        torch.equal(a.hidden, b.hidden) for a, b in zip(one.frames, other.frames, strict=True)
    )


class Office:
    """Engines of one model, one after the other, on a disk that remembers; sessions that are known by owner."""

    def __init__(self, disk: Disk) -> None:
        self.disk = disk
        self.images: dict[tuple[str, int], SessionImage] = {}
        self.sessions: dict[str, Sitting] = {}
        self.generator = torch.Generator().manual_seed(0)
        self.journals: list[Journal] = []
        self.begin()

    def begin(self) -> None:
        self.journals.append(open_journal(self.disk.root))
        for found in self.journals[0].store.recover(self.journals[0].source):
            self.journals[0].adopt(found.image.name, found)
            self.sessions[found.image.name] = Sitting(image=found.image)
            kept = Kept(uid=found.image.owner, version=found.image.tokens[0])
            self.journals[0]._thread.start(lambda kept=kept: self.disk.say(kept))

    def open(self, name: str) -> None:
        if name not in self.sessions:
            self._now(Sitting(image=self._image(name, f"{name}-{next(numbers)}", None, 1)))

    def change(self, name: str, fresh: int, state: str) -> None:
        sitting = self.sessions.get(name)
        if sitting is not None:
            self._now(replace(sitting, image=self._image(name, sitting.uid, sitting.image, fresh), state=state))

    def _image(self, name: str, uid: str, before: SessionImage | None, fresh: int) -> SessionImage:
        """Return an image in which two frames stay and some come."""
        version, frames = (0, ()) if before is None else (before.tokens[0] + 1, before.frames[-2:])
        new = [frame_of(torch.randn(1, 3, 40, generator=self.generator)) for _ in range(fresh)]
        self.images[uid, version] = image_of(name, uid, version, (*frames, *new))
        return self.images[uid, version]

    def _now(self, sitting: Sitting) -> None:
        self.sessions[sitting.name] = sitting
        self.journals[0].touch(sitting.name)
        self.journals[0].attend(self.sessions)

    def close(self, name: str) -> None:
        sitting = self.sessions.pop(name, None)
        if sitting is not None:
            self.disk.say(Closing(uid=sitting.uid, done=False))
            self.journals[0].forget(name)
            self.journals[0]._thread.start(lambda: self.disk.say(Closing(uid=sitting.uid, done=True)))

    def write(self) -> None:
        for _ in range(2):
            self.journals[0]._thread.start(lambda: None).result()
            self.journals[0].attend(self.sessions, idle=True)
        self.journals[0]._thread.start(lambda: None).result()

    def neighbour(self, name: str) -> None:
        """Give a session to an engine that runs at the same time; both are killed, and one comes after them."""
        if name not in self.sessions:
            mine, self.journals = self.journals, []
            self.journals = [open_journal(self.disk.root)]
            self.journals[0].store.recover(self.journals[0].source)
            self.open(name)
            self.write()
            self.journals += mine
            self.kill()

    def kill(self) -> None:
        """Kill the engine: bytes already handed to the system are there for the next engine."""
        for journal in self.journals:
            journal._thread.start(lambda: None).result()
            journal._thread.close()
            os.close(journal.store.lock)
        self.journals = []
        self.begin()

    def end(self) -> None:
        """End the engine process."""
        for journal in self.journals:
            journal._thread.close()
            os.close(journal.store.lock)


def open_journal(root: Path) -> Journal:
    """Open a journal as an engine does."""
    persistence = object.__new__(Persistence)
    persistence.identity, persistence._device, persistence._journals = MODEL, CPU, root / "djinn" / "journals"
    persistence._shared, persistence._store = False, None
    return persistence.open_journal(MODELS, lambda: None)


@contextmanager
def watched(disk: Disk) -> Iterator[None]:
    """Take images of sittings; record the images certain to be on the disk when a forcing returns."""
    real_write, real_force = JournalFiles.write, JournalFiles.force
    last: dict[JournalFiles, SessionImage] = {}

    def write(files: JournalFiles, image: SessionImage, **how: bool) -> None:
        real_write(files, image, **how)
        last[files] = image

    def force(files: JournalFiles) -> None:
        image = last.get(files)
        real_force(files)
        if image is not None:
            disk.say(Kept(uid=image.owner, version=image.tokens[0]))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(JournalFiles, "write", write)
        patch.setattr(JournalFiles, "force", force)
        patch.setattr(journals, "dump_session", lambda session, rows, frames: session.image)
        patch.setattr(journals, "RUNNING_SECONDS", 0.0)
        patch.setattr(journals, "RUNNING_TAKE_ONE_IN", 0)
        patch.setattr(journal_files, "SLACK_BYTES", 1000)
        yield


names = st.sampled_from("abc")
moves = st.lists(
    st.one_of(
        st.tuples(st.just("open"), names),
        st.tuples(st.just("change"), names, st.integers(0, 3), st.sampled_from(["idle", "running"])),
        st.tuples(st.just("close"), names),
        st.tuples(st.just("write")),
        st.tuples(st.just("kill")),
        st.tuples(st.just("neighbour"), st.just("n")),
    ),
    min_size=1,
    max_size=14,
)
chances = st.sampled_from([0.0, 0.1, 0.5, 0.9, 1.0])
cuts = st.lists(st.tuples(st.floats(0, 1), chances, st.integers(0, 1 << 30)), min_size=1, max_size=6)


def played(root: Path, played: list[Any]) -> tuple[Disk, Office]:
    root.mkdir()
    disk = Disk(root)
    with disk.recording(), watched(disk):
        office = Office(disk)
        for verb, *given_to in played:
            getattr(office, verb)(*given_to)
        office.write()
        office.end()
    return disk, office


def found_after(root: Path) -> list[SessionImage]:
    """Return the images that the next engine finds; the one after it, when the next did nothing, finds the same."""
    seen = []
    for _ in range(2):
        journal = open_journal(root)
        seen.append([found.image for found in journal.store.recover(journal.source)])
        journal.close({}, forget=False)
        assert not list(root.rglob("*.part"))
    assert [len(images) for images in seen] == [len(seen[0])] * 2
    return seen[0]


def told(images: list[SessionImage]) -> list[tuple[str, int]]:
    return sorted((image.owner, image.tokens[0]) for image in images)


def lost_or_wrong(disk: Disk, office: Office, cut: Cut, into: Path) -> list[str]:
    """List the promises that do not hold after a cut."""
    said = [deed.what for deed in disk.deeds[: cut.after] if isinstance(deed, Said)]
    kept = {one.uid: one.version for one in said if isinstance(one, Kept)}
    closing = {one.uid: one.done for one in said if isinstance(one, Closing)}
    wrong, found = [], {}
    for image in found_after(after_cut(disk, cut, into)):
        if image.owner in found:
            wrong.append(f"{image.owner} is there twice")
        if closing.get(image.owner):
            wrong.append(f"{image.owner} was closed and is there")
        if not equal(image, office.images[image.owner, image.tokens[0]]):
            wrong.append(f"{image.owner} has other bits")
        found[image.owner] = image.tokens[0]
    for uid, version in kept.items():
        if uid not in closing and found.get(uid, -1) < version:
            wrong.append(f"{uid} was there as {version} and is found as {found.get(uid)}")
    return wrong


@settings(max_examples=40, deadline=None)
@given(played_moves=moves, at=cuts)
def test_what_was_forced_is_found_and_nothing_is_wrong(played_moves: list[Any], at: list[Any]) -> None:
    with tempfile.TemporaryDirectory(prefix="djt-") as folder:
        disk, office = played(Path(folder) / "alive", played_moves)
        for number, (when, kept, seed) in enumerate(at):
            cut = Cut(after=round(when * len(disk.deeds)), kept=kept, seed=seed)
            assert not lost_or_wrong(disk, office, cut, Path(folder) / f"cut-{number}")


WORKDAY = [
    ("open", "a"),
    ("open", "b"),
    *[("change", "a", 2, "idle"), ("write",)] * 7,  # each image is written, so that the last one begins no new file
    ("close", "b"),
    ("change", "a", 1, "running"),
    ("open", "c"),
    ("write",),
    ("kill",),
    ("neighbour", "n"),
    ("change", "c", 3, "idle"),
]


def test_a_cut_after_each_deed_of_a_day(tmp_path: Path) -> None:
    """The cut leaves none of the unforced changes, or all of them."""
    disk, office = played(tmp_path / "alive", WORKDAY)
    for after in range(len(disk.deeds) + 1):
        for kept in (0.0, 1.0):
            assert not lost_or_wrong(disk, office, Cut(after=after, kept=kept), tmp_path / f"{after}-{kept}")


def test_a_cut_while_the_next_engine_recovers(tmp_path: Path) -> None:
    """The power fails again and again: a session found once is found each time."""
    disk, _ = played(tmp_path / "alive", WORKDAY)
    left = after_cut(disk, Cut(after=len(disk.deeds)), tmp_path / "left")
    again = Disk(left)
    before = len(again.deeds)
    with again.recording():
        there = told(found_after(left))
    assert len(there) == 3
    for after in range(before, len(again.deeds) + 1):
        for kept in (0.0, 0.5, 1.0):
            cut = Cut(after=after, kept=kept, seed=after)
            assert told(found_after(after_cut(again, cut, tmp_path / f"{after}-{kept}"))) == there


@pytest.mark.parametrize("left_out", ["of_folders", "of_berths", "of_names", "of_bytes", "of_what_was_found"])
def test_each_forcing_is_needed(left_out: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A journal without it loses a session at some moment of the day."""
    match left_out:
        case "of_folders":
            monkeypatch.setattr(locked_folders, "make_folder", lambda folder: folder.mkdir(parents=True, exist_ok=True))
        case "of_berths":
            for module in (locked_folders, journal_folders):
                monkeypatch.setattr(module, "force_names", lambda folder: None)
        case "of_names":
            monkeypatch.setattr(journal_files, "force_names", lambda folder: None)
        case "of_bytes":
            monkeypatch.setattr(journal_files, "force", lambda descriptor: None)
        case "of_what_was_found":
            monkeypatch.setattr(journal_files, "force_file", lambda path: None)
    disk, office = played(tmp_path / "alive", WORKDAY)
    cuts = (Cut(after=after) for after in range(len(disk.deeds) + 1))
    assert any(lost_or_wrong(disk, office, cut, tmp_path / str(cut.after)) for cut in cuts)


def test_a_saved_checkpoint_is_there_and_a_replaced_one_is_old_or_new(tmp_path: Path) -> None:
    (tmp_path / "alive").mkdir()
    disk, model = Disk(tmp_path / "alive"), MODEL
    saved = [image_of(name, name, number, (frame_of(torch.randn(1, 3, 40)),)) for number, name in enumerate("xxy")]
    with disk.recording():
        folder = CheckpointFolder(disk.root / "djinn" / "checkpoints", model, CPU)
        for image in saved:
            folder.save(image.name, image, describe(image.name, image, "m", "d"), replace=True, abandoned=Event())
            disk.say(image)
        folder.save("z", saved[0], describe("z", saved[0], "m", "d"), replace=False, abandoned=Event())
        disk.say(msgspec.structs.replace(saved[0], name="z"))
    for after, kept in itertools.product(range(len(disk.deeds) + 1), (0.0, 0.5, 1.0)):
        left = after_cut(disk, Cut(after=after, kept=kept, seed=after), tmp_path / f"{after}-{kept}")
        folder = CheckpointFolder(left / "djinn" / "checkpoints", model, CPU)
        found = {one.name: folder.read(folder.find(one.name)) for one in folder.list().checkpoints}
        assert all(any(equal(image, other) for other in saved) for image in found.values())
        for promised in [deed.what for deed in disk.deeds[:after] if isinstance(deed, Said)]:
            assert found[promised.name].tokens[0] >= promised.tokens[0]
