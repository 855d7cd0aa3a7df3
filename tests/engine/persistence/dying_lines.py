"""Engines whose journals are in stores or in folders, and between which sessions wait in a store: each reaches it by
lines that are cut for good in the midst of its work, as when its process is killed there."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal

from djinn_jupyter.engine.process.build import open_journal
from djinn_jupyter.errors import StorageFailed
from djinn_jupyter.remote.engine.checkpoint_store import CheckpointStore, MoveStore
from djinn_jupyter.remote.engine.move_folder import MoveFolder
from djinn_jupyter.remote.engine.move_places import MovePlaces
from tests.engine.desk import Desk
from tests.engine.persistence.faulty_store import Fault, Line, Objects

STORE: Final = "s3://lab/moves"
Side = Literal["before", "after"]


class LifeLine(Line):
    """A line of a process to one store; what is done there counts for its death."""

    def __init__(self, objects: Objects, address: str, life: Life) -> None:
        super().__init__(objects, address)
        self.life = life

    def _fault(self) -> Fault | None:
        return self.life.fault() or super()._fault()


@dataclass
class Life:
    """One process, which dies before or after the effect of its deed of that number; None: it lives."""

    deeds: int | None = None
    side: Side = "before"
    dead: bool = False
    at_death: Callable[[], None] = lambda: None

    def fault(self) -> Fault | None:
        if self.dead:
            return "before"
        if self.deeds is None:
            return None
        self.deeds -= 1
        if self.deeds > 0:
            return None
        self.die()
        return self.side

    def die(self) -> None:
        self.dead = True
        self.at_death()


class FilesOf:
    """The files of sessions on their way, on the same line (`Objects` of the package)."""

    def __init__(self, line: Line) -> None:
        self.address, self._line = line.address, line

    def put(self, file: Path, name: str, *, replace: bool) -> None:
        assert replace
        try:
            self._line.put(name, file.read_bytes())
        except OSError as error:
            raise StorageFailed(str(error)) from error

    def get(self, name: str, file: Path) -> None:
        try:
            file.write_bytes(self._line.read(name)[0])
        except FileNotFoundError:
            raise
        except OSError as error:
            raise StorageFailed(str(error)) from error

    def sizes(self) -> dict[str, int]:
        return {}


@dataclass
class Place:
    """An engine's journal, and its present process. `lines` are those to the store of its journal, by its name."""

    name: str
    kind: Literal["store", "folder"]
    root: Path
    moves: Objects
    lines: dict[str, Line]
    objects: Objects = field(default_factory=Objects)
    life: Life = field(default_factory=Life)
    lives: int = 0

    def begin(self, desk: Desk, *, cut: bool = False) -> Line:
        """Let an engine begin anew with this journal; return its line to the store of moves, which may be cut."""
        self.lives += 1
        self.life = Life(at_death=self._keep)
        folder = self.root / f"{self.name}-{self.lives}"
        line, persistence = LifeLine(self.moves, STORE, self.life), desk.engine.persistence
        self.lines[self.name] = LifeLine(self.objects, f"s3://lab/{self.name}", self.life)
        files = CheckpointStore(FilesOf(line), folder / "way", persistence.identity, desk.engine.forward.device)  # type: ignore[arg-type]
        line.cut = cut
        own = MoveFolder(folder / "moves", persistence.identity, desk.engine.forward.device)
        stored = self.kind == "store"
        persistence.moves = MovePlaces(None if stored else own, (STORE,), lambda address: MoveStore(line, files))
        persistence._store = f"s3://lab/{self.name}" if stored else None
        persistence._journals = folder / "journals"
        open_journal(desk.engine)
        return line

    def _keep(self) -> None:
        """Keep the files of this moment for the next process."""
        now = self.root / f"{self.name}-{self.lives}"
        if self.kind == "folder":
            shutil.copytree(now / "journals", self.root / f"{self.name}-{self.lives + 1}" / "journals")


def gone(desk: Desk) -> None:
    """Empty an engine whose process is dead, or that is not needed any more."""
    for session in desk.engine.sessions.values():
        session.moving.end()
    desk.close_all()
    journal = desk.engine.persistence.journal
    journal.abandon()
    desk.engine.persistence.journal = None
