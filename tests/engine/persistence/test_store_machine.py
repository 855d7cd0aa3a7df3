"""Engines write a journal in a store whose lines break, whose lists are old and whose requests arrive late: what was
confirmed is found by the next engine, and an engine that was taken over confirms nothing."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as some
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from djinn_jupyter.engine.store.journal_file import JournalFile, JournalName, by_session, name_of
from djinn_jupyter.remote.engine import object_store as stored_files
from djinn_jupyter.remote.engine.lease import Claimant
from djinn_jupyter.remote.engine.object_store import StoredFiles, _fetch
from djinn_jupyter.remote.engine.objects import HeadClaims, HeadObject
from tests.engine.persistence.faulty_store import Fault, Line, Objects

FAULTS = some.lists(some.sampled_from([None, None, "before", "after", "late"]), max_size=3)
STEMS = ("a", "b")


class WritingEngine:
    """The engine of one epoch on a machine of its own."""

    def __init__(self, objects: Objects, folder: Path) -> None:
        self.line, self.folder = Line(objects), folder
        self.head = HeadObject(self.line)
        self.claims = HeadClaims(self.head, self.line.address)
        self.epoch = self.claims.claim(Claimant(host="h", boot=folder.name, space="", pid=1, mark=None))
        self.noticed = False
        self.stored = StoredFiles(self.line, self.head, self.epoch, self._notice)
        _fetch(self.line, self.head.read(), folder)
        self.found = {name_of(group[0]).stem: tuple(reversed(group)) for group in by_session(sorted(folder.iterdir()))}
        self.files: dict[str, JournalFile] = {}
        self.numbers = {stem: name_of(paths[-1]).number for stem, paths in self.found.items()}
        self.claims.forget_earlier(self.epoch)
        self.stored.forget_unnamed()

    def _notice(self) -> None:
        self.noticed = True

    def append(self, stem: str, text: bytes, *, anew: bool) -> bytes:
        """Append to the session's file, or begin another; return the content that is to be forced."""
        file = self.files.get(stem)
        if file is None or anew:
            replaced = self.found.pop(stem, ()) if file is None else (*file.replaced, file.path)
            self.numbers[stem] = self.numbers.get(stem, -1) + 1
            path = JournalName(folder=self.folder, stem=stem, number=self.numbers[stem]).path
            file = self.files[stem] = JournalFile(path, replaced, self.stored)
        file.append(lambda writer: writer.record(b"TEXT", text))
        return file.path.read_bytes()

    def force(self, stem: str) -> None:
        self.files[stem].force()

    def remove(self, stem: str) -> None:
        file = self.files.pop(stem, None)
        paths = (*self.found.pop(stem, ()), *(() if file is None else (*file.replaced, file.path)))
        self.stored._retry_at = 0.0
        self.stored.remove(paths)


class StoredJournal(RuleBasedStateMachine):
    """Model: of each session the content that was confirmed last (None: closed), and those that may be there instead
    because no answer came."""

    @initialize()
    def begin(self) -> None:
        self.small = pytest.MonkeyPatch()
        for name, most in (("LONGEST_BYTES", 100), ("LARGE_BYTES", 90), ("MOST_PARTS", 4)):
            self.small.setattr(stored_files, name, most)
        self.root = Path(tempfile.mkdtemp())
        self.objects = Objects()
        self.confirmed: dict[str, bytes | None] = {}
        self.possible: dict[str, set[bytes | None]] = {}
        self.engines: list[WritingEngine] = []
        self.broken: set[tuple[int, str]] = set()
        self.start()

    @rule()
    def start(self) -> None:
        """Another engine claims the journal, and finds what was confirmed, or what may have taken effect."""
        folder = self.root / str(len(self.engines))
        folder.mkdir()
        engine = WritingEngine(self.objects, folder)
        for stem in STEMS:
            found = engine.found.get(stem)
            content = None if found is None else found[-1].read_bytes()
            assert content in self.allowed(stem), stem
            self.settle(stem, content)
        self.engines.append(engine)

    @precondition(lambda self: self.engines)
    @rule(stem=some.sampled_from(STEMS), text=some.binary(max_size=4), anew=some.booleans(), faults=FAULTS)
    def write(self, stem: str, text: bytes, anew: bool, faults: list[Fault | None]) -> None:
        """The present engine writes; after a failure it begins anew, as the journal does."""
        engine = self.engines[-1]
        key = (engine.epoch, stem)
        content = engine.append(stem, text, anew=anew or key in self.broken)
        self.broken.discard(key)
        engine.line.faults = list(faults)
        try:
            engine.force(stem)
        except OSError:
            self.broken.add(key)
            self.possible.setdefault(stem, set()).add(content)
        else:
            self.settle(stem, content)
        engine.line.faults = []

    @precondition(lambda self: self.engines)
    @rule(stem=some.sampled_from(STEMS), faults=FAULTS)
    def close(self, stem: str, faults: list[Fault | None]) -> None:
        """The present engine closes a session; it tries again until that is confirmed, as the journal does."""
        engine = self.engines[-1]
        paths = (engine.found.get(stem, ()), engine.files.get(stem))
        engine.line.faults = list(faults)
        try:
            engine.remove(stem)
        except OSError:
            self.possible.setdefault(stem, set()).add(None)
            found, file = paths
            names = (*found, *(() if file is None else (*file.replaced, file.path)))
            engine.line.faults = []
            engine.stored._retry_at = 0.0
            engine.stored.remove(names)
        engine.line.faults = []
        self.broken.discard((engine.epoch, stem))
        self.settle(stem, None)

    @precondition(lambda self: len(self.engines) > 1)
    @rule(data=some.data(), stem=some.sampled_from(STEMS), faults=FAULTS)
    def write_too_late(self, data: some.DataObject, stem: str, faults: list[Fault | None]) -> None:
        """An engine that was taken over confirms nothing, and sees why when the store answers."""
        engine = data.draw(some.sampled_from(self.engines[:-1]))
        engine.append(stem, b"too late", anew=True)
        engine.line.faults = list(faults)
        with pytest.raises(OSError):
            engine.force(stem)
        engine.line.faults = []
        with pytest.raises(OSError, match="another engine has claimed the journal"):
            engine.force(stem)
        assert engine.noticed
        assert engine.claims.later(engine.epoch) is not None

    @rule()
    def arrive_late(self) -> None:
        self.objects.let_late_ones_arrive()

    @rule(age=some.integers(0, 9))
    def list_what_was(self, age: int) -> None:
        self.objects.list_age = age

    @invariant()
    def whole(self) -> None:
        """The head names objects that are there, in the order of their bytes."""
        if not getattr(self, "engines", None):
            return
        for name, parts in HeadObject(Line(self.objects)).read().files.items():
            contents = [self.objects.now[one.object][0] for one in parts]
            assert [len(content) for content in contents] == [one.nbytes for one in parts], name

    def allowed(self, stem: str) -> set[bytes | None]:
        return {self.confirmed.get(stem)} | self.possible.get(stem, set())

    def settle(self, stem: str, content: bytes | None) -> None:
        self.confirmed[stem] = content
        self.possible.pop(stem, None)

    def teardown(self) -> None:
        if not hasattr(self, "root"):
            return
        try:
            self.start()
        finally:
            for engine in self.engines:
                for file in engine.files.values():
                    file.close()
            self.small.undo()
            shutil.rmtree(self.root)


TestStoredJournal = StoredJournal.TestCase
TestStoredJournal.settings = settings(max_examples=150, stateful_step_count=25, deadline=None)
