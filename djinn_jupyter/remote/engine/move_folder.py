"""Sessions on their way between two engines: one file each, whose name says where the session is.

    ID.djinn      written whole by the engine that the session leaves; nothing is decided
    ID.arriving   renamed by the one that is about to take it in, before its journal says so; nothing is decided
    ID.arrived    renamed by that one: the session is there
    ID.stayed     renamed by the one that it leaves: the session is where it was; an empty file

Of two renamings of one file one succeeds, so at each moment the session belongs to one engine. Each engine has first
recorded the move in its journal (`Moving`), and a killed one checks here when it starts again. Without a file, an
engine has recorded the move and not written it yet, or both know the decision: the session is with the engine that has
it. A session that stays before another engine has begun to take it in leaves no file: no journal but its own has the
move.
"""

from __future__ import annotations

import os
import threading
from contextlib import suppress
from pathlib import Path
from typing import Final, Literal

import torch

from djinn_jupyter.engine.store.checkpoint_files import SUFFIX, CheckpointFolder
from djinn_jupyter.engine.store.identity import ModelIdentity
from djinn_jupyter.engine.store.image import SessionImage
from djinn_jupyter.errors import IllegalMove, StorageFailed, UsageError
from djinn_jupyter.files import force_names
from djinn_jupyter.remote.engine.moving import Moving
from djinn_jupyter.wire.nouns import CheckpointDescription

Decision = Literal["arrived", "stayed"]
_DECISIONS: Final[tuple[Decision, ...]] = ("arrived", "stayed")
_ARRIVING: Final = ".arriving"


class MoveFolder:
    """The folder shared by the engines between which sessions move. The first move creates it."""

    def __init__(self, folder: Path, identity: ModelIdentity, device: torch.device) -> None:
        self.folder = folder
        self._files = CheckpointFolder(folder, identity, device)
        self._ended: set[str] = set()  # moves that were decided here, also where no file shows it

    def write(
        self, move: str, image: SessionImage, described: CheckpointDescription, abandoned: threading.Event
    ) -> int:
        """Write a session, complete and durable; return the bytes. Raises StorageFailed, UsageError for a decided move
        of that name."""
        if move in self._ended or any(self._path(move, f".{decision}").exists() for decision in _DECISIONS):
            raise UsageError("The move of this name has ended already; draw another.")
        return self._files.save(move, image, described, replace=False, abandoned=abandoned)[0].bytes_stored

    def read(self, move: str) -> SessionImage:
        """Return the session of a move. Raises UsageError where it is no longer there, or this engine does not see that
        folder; CheckpointRefused."""
        path = self._path(move, SUFFIX)
        if not path.is_file():
            raise UsageError(
                f"No session waits in {self.folder} for this move: it has ended, or the engines keep their sessions in "
                "different folders (--shared-journal has to be the same)."
            )
        return self._files.read(path).image

    def begin_arrival(self, move: str) -> None:
        """Reserve the session for this engine, durably. Raises IllegalMove where the move was cancelled or another
        engine takes the session in, StorageFailed."""
        try:
            self._path(move, SUFFIX).rename(self._path(move, _ARRIVING))
            force_names(self.folder)
        except FileNotFoundError:
            raise IllegalMove("The session is not taken in, because its move was given up meanwhile.") from None
        except OSError as error:
            raise self._not_noted(error) from error

    def decide(self, moving: Moving) -> bool:
        """Decide that the session is with the engine at this end of the move, if nothing was decided. Return whether it
        is. Raises StorageFailed."""
        try:
            with suppress(FileNotFoundError):  # it was decided
                self._stay(moving.move) if moving.end == "leaves" else self._arrive(moving.move)
                force_names(self.folder)
        except OSError as error:
            raise self._not_noted(error) from error
        self._ended.add(moving.move)
        other: Decision = "arrived" if moving.end == "leaves" else "stayed"
        return not self._path(moving.move, f".{other}").exists()

    def _arrive(self, move: str) -> None:
        self._path(move, _ARRIVING).rename(self._path(move, ".arrived"))

    def _stay(self, move: str) -> None:
        """Keep the session here, with a file for the engine that has recorded to take it in, if one may have."""
        try:
            self._path(move, SUFFIX).unlink()
        except FileNotFoundError:
            self._path(move, _ARRIVING).rename(self._path(move, ".stayed"))
            os.truncate(self._path(move, ".stayed"), 0)

    def _not_noted(self, error: OSError) -> StorageFailed:
        return StorageFailed(f"A move could not be noted in {self.folder}: {error.strerror or error}.")

    def forget(self, move: str) -> None:
        """Remove the remains of a move, once an engine without the session has durably forgotten it."""
        for suffix in (SUFFIX, _ARRIVING, ".arrived", ".stayed"):
            self._path(move, suffix).unlink(missing_ok=True)
        self._ended.discard(move)

    def _path(self, move: str, suffix: str) -> Path:
        return self.folder / f"{move}{suffix}"
