"""Sessions on their way between two engines. Each move has a record, one word that says where the session is:

    waits      written by the engine that the session leaves, after the session itself; nothing is decided
    arriving   written by the one that is about to take it in, before its journal says so; nothing is decided
    arrived    written by that one: the session is there
    stayed     written by the one that it leaves: the session is where it was

Of two changes of one record one succeeds, so at each moment the session belongs to one engine. No word comes twice, so
a change that arrives late finds another word and changes nothing. Each engine has first recorded the move in its
journal (`Moving`), and a killed one checks here when it starts again. Without a record, an engine has recorded the move
and not written it yet, or both know the decision: the session is with the engine that has it. A session that stays
before another engine has begun to take it in leaves no record: no journal but its own has the move.
"""

from __future__ import annotations

import logging
import os
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final, Literal, get_args

import torch

from djinn_jupyter.engine.session.session import Moving
from djinn_jupyter.engine.store.checkpoint_files import SUFFIX, CheckpointFolder
from djinn_jupyter.engine.store.identity import ModelIdentity
from djinn_jupyter.engine.store.image import SessionImage
from djinn_jupyter.errors import IllegalMove, StorageFailed, UnknownCheckpoint, UsageError
from djinn_jupyter.files import force_names
from djinn_jupyter.remote.engine.objects import Changed
from djinn_jupyter.wire.nouns import CheckpointDescription

log = logging.getLogger(__name__)

Word = Literal["waits", "arriving", "arrived", "stayed"]
WORDS: Final[tuple[Word, ...]] = get_args(Word)
_DECIDED: Final = ("arrived", "stayed")
_TRIES: Final = 16  # each failure is another engine's success


class Moves(ABC):
    """The sessions that wait in one place, called `where`, and the decision of each move. `write` and `read` may take
    long, and are called in a thread of their own. Methods raise StorageFailed where the place fails."""

    else_elsewhere = ""  # another reason why a session is not found

    def __init__(self, where: str, files: CheckpointFolder) -> None:
        self.where, self._files = where, files
        self._ended: set[str] = set()  # moves that were decided here, also where no record shows it

    def write(
        self, move: str, image: SessionImage, described: CheckpointDescription, abandoned: threading.Event
    ) -> int:
        """Write a waiting session, complete and durable; return its bytes. Raises UsageError for a name that had a move
        before."""
        if move in self._ended or self._record(move) is not None:
            raise UsageError("The move of this name has ended already; draw another.")
        return self._begin(move, image, described, abandoned)

    def read(self, move: str) -> SessionImage:
        """Return a waiting session. Raises UsageError where there is none, or not here; CheckpointRefused."""
        try:
            if (record := self._record(move)) is not None and record[0] == "waits":
                return self._files.load(move)[0]
        except UnknownCheckpoint:
            pass
        raise UsageError(f"No session waits in {self.where} for this move: it has ended{self.else_elsewhere}.")

    def begin_arrival(self, move: str) -> None:
        """Reserve the session for this engine, durably. Raises IllegalMove where the move was cancelled, or another
        engine takes the session in."""
        record = self._record(move)
        try:
            if record is None or record[0] != "waits":
                raise Changed
            self._put(move, "arriving", record[1])
        except Changed:
            raise IllegalMove("The session is not taken in, because its move was given up meanwhile.") from None

    def decide(self, moving: Moving) -> bool:
        """Decide that the session is with the engine at this end of the move, if nothing was decided. Return whether it
        is."""
        mine: Word = "stayed" if moving.end == "leaves" else "arrived"
        found = self._decided(moving.move, mine)
        self._ended.add(moving.move)
        return found in (mine, None)

    def forget(self, move: str) -> None:
        """Remove the remains of a move, once an engine without the session has durably forgotten it."""
        self._delete(move)
        self._ended.discard(move)

    def _decided(self, move: str, mine: Word) -> Word | None:
        """Return the decision of a move, which this engine makes where there was none; None without a record. A session
        that stays leaves its record to an engine that has begun to take it in."""
        for _ in range(_TRIES):
            record = self._record(move)
            if record is None or record[0] in _DECIDED:
                return None if record is None else record[0]
            with suppress(Changed):
                self._put(move, mine, record[1])
                if mine == "stayed":
                    self._delete(move, record=record[0] == "waits")
                return mine
        raise StorageFailed(f"A move could not be noted in {self.where}: it changes all the time.")

    def _record(self, move: str) -> tuple[Word, str] | None:
        """Return the word of a move and the tag of this record; None where there is none."""
        with self._said():
            return self._look(move)

    def _put(self, move: str, word: Word, tag: str | None) -> None:
        """Replace the record with this tag. Raises Changed where there is another one, or none."""
        with self._said():
            try:
                self._replace(move, word, tag)
            except FileNotFoundError:
                raise Changed from None

    def _delete(self, move: str, *, record: bool = True) -> None:
        """Delete the session, and its record too."""
        try:
            self._remove(move, record=record)
        except OSError as error:
            log.warning("Files that no session needs are left in %s: %s", self.where, error)

    @contextmanager
    def _said(self) -> Iterator[None]:
        try:
            yield
        except FileNotFoundError:
            raise
        except OSError as error:
            raise StorageFailed(f"A move could not be noted in {self.where}: {error.strerror or error}.") from error

    @abstractmethod
    def _begin(
        self, move: str, image: SessionImage, described: CheckpointDescription, abandoned: threading.Event
    ) -> int: ...

    @abstractmethod
    def _look(self, move: str) -> tuple[Word, str] | None: ...

    @abstractmethod
    def _replace(self, move: str, word: Word, tag: str | None) -> None: ...

    @abstractmethod
    def _remove(self, move: str, *, record: bool) -> None: ...


class MoveFolder(Moves):
    """The folder shared by the engines between which sessions move. The first move creates it. The record of a move is
    the suffix of its session's file: ID.djinn (it waits), ID.arriving, ID.arrived or ID.stayed, which is empty."""

    else_elsewhere = ", or the engines keep their sessions in different folders (--shared-journal has to be the same)"

    def __init__(self, folder: Path, identity: ModelIdentity, device: torch.device) -> None:
        super().__init__(str(folder), CheckpointFolder(folder, identity, device))
        self.folder = folder

    def _begin(
        self, move: str, image: SessionImage, described: CheckpointDescription, abandoned: threading.Event
    ) -> int:
        return self._files.save(move, image, described, replace=False, abandoned=abandoned)[0].bytes_stored

    def _look(self, move: str) -> tuple[Word, str] | None:
        return next(((word, word) for word in WORDS if self._path(move, word).exists()), None)  # in their order in time

    def _replace(self, move: str, word: Word, tag: str | None) -> None:
        self._path(move, tag).rename(self._path(move, word))
        force_names(self.folder)

    def _remove(self, move: str, *, record: bool) -> None:
        if not record:
            os.truncate(self._path(move, "stayed"), 0)
        for word in WORDS if record else ():
            self._path(move, word).unlink(missing_ok=True)

    def _path(self, move: str, word: str | None) -> Path:
        return self.folder / f"{move}{SUFFIX if word == 'waits' else f'.{word}'}"


class MovePlaces:
    """The places that one engine knows: a shared folder, or a store that both were given. A request may name only those
    of `stores`, which the engine's own user gave it; a journal also one that an earlier engine was given."""

    def __init__(self, folder: MoveFolder | None, stores: tuple[str, ...], open_store: Callable[[str], Moves]) -> None:
        self.folder, self.stores = folder, stores
        self._open_store = open_store
        self._opened: dict[str, Moves] = {}
        self._lock = threading.Lock()

    def at(self, store: str | None) -> Moves:
        """Return the sessions that wait in a store, or in the folder. Raises StorageFailed or MissingDependency where
        this engine cannot reach a store of its journal."""
        if store is None:
            return self._folder()
        with self._lock:
            if store not in self._opened:
                self._opened[store] = self._open_store(store)
            return self._opened[store]

    def require(self, store: str | None) -> None:
        """Raise UsageError where a session that moves to or from this engine cannot wait there."""
        if store is None:
            self._folder()
        elif store not in self.stores:
            raise UsageError(
                f"This engine was not given {store} as a place for sessions on their way: start it with --moves "
                f"{store}, or give both engines one --shared-journal."
            )

    def _folder(self) -> MoveFolder:
        """Return the folder, which the next engine with this one's journal has to find too."""
        if self.folder is None:
            raise UsageError(
                "This engine's journal is in a store, so that sessions wait there on their way: start the other engine "
                f"with --moves {self.stores[0]}, or give both one --shared-journal."
            )
        return self.folder
