"""Sessions on their way between two engines that have a store in common: two objects each.

    ID.djinn    the session, whole, written by the engine that it leaves
    ID.state    where the session is: one word, replaced by compare-and-put alone

The words are those of the names in `move_folder`: `waits`, then `arriving`, then `arrived` or `stayed`. None comes
twice, so a put that had no answer and arrives late finds another word and changes nothing. Where there is no word, an
engine has noted the move and not written it yet, or both know of the decision: the session is with the one that has it.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final, Literal, get_args

import torch

from djinn_jupyter.engine.persistence.checkpoint_files import SUFFIX
from djinn_jupyter.engine.persistence.identity import ModelIdentity
from djinn_jupyter.engine.persistence.image import SessionImage
from djinn_jupyter.engine.persistence.store.checkpoint_store import CheckpointStore
from djinn_jupyter.engine.persistence.store.journal_store import Changed, JournalStore
from djinn_jupyter.engine.persistence.store.objects import Objects
from djinn_jupyter.engine.persistence.store.s3 import S3Store
from djinn_jupyter.engine.session.moving import Moving
from djinn_jupyter.errors import IllegalMove, StorageFailed, UnknownCheckpoint, UsageError
from djinn_jupyter.wire.nouns import CheckpointDescription
from djinn_jupyter.written_aside import Abandoned

log = logging.getLogger(__name__)

Word = Literal["waits", "arriving", "arrived", "stayed"]
_WORDS: Final[tuple[Word, ...]] = get_args(Word)
_DECIDED: Final = ("arrived", "stayed")
_TRIES: Final = 16  # each that fails is another engine's that succeeded


class MoveStore:
    """The store that the engines between which sessions move share."""

    def __init__(self, words: JournalStore, files: CheckpointStore) -> None:
        self._words, self._files = words, files
        self._ended: set[str] = set()  # moves that were decided here, also where no word tells

    @classmethod
    def at(cls, address: str, folder: Path, identity: ModelIdentity, device: torch.device) -> MoveStore:
        """Return those below an address. `folder` is on this machine; files are there while they are on their way."""
        return cls(S3Store(address), CheckpointStore(Objects.at(address), folder, identity, device))

    def write(
        self, move: str, image: SessionImage, described: CheckpointDescription, abandoned: threading.Event
    ) -> int:
        if move in self._ended or self._read(move) is not None:
            raise UsageError("The move of this name has ended already; draw another.")
        saved, _ = self._files.save(move, image, described, replace=True, abandoned=abandoned)
        try:
            if abandoned.is_set():
                raise Abandoned
            self._put(move, "waits", None)
        except Changed:
            raise UsageError("The move of this name is another engine's; draw another.") from None
        except BaseException:
            self._delete(move)
            raise
        return saved.bytes_stored

    def read(self, move: str) -> SessionImage:
        there = self._read(move)
        if there is None or there[0] != "waits":
            raise self._not_there()
        try:
            return self._files.found(move).read().image
        except UnknownCheckpoint:
            raise self._not_there() from None

    def begin_arrival(self, move: str) -> None:
        there = self._read(move)
        try:
            if there is None or there[0] != "waits":
                raise Changed
            self._put(move, "arriving", there[1])
        except Changed:
            raise IllegalMove("The session is not taken in, because its move was given up meanwhile.") from None

    def decide(self, moving: Moving) -> bool:
        mine: Word = "stayed" if moving.end == "leaves" else "arrived"
        found = self._decided(moving.move, mine)
        self._ended.add(moving.move)
        return found in (mine, None)

    def forget(self, move: str) -> None:
        self._delete(move)
        self._ended.discard(move)

    # ------------------------------------------------------------------------------------------- the words

    def _decided(self, move: str, mine: Word) -> Word | None:
        """Return the decision of a move, which is this engine's where nothing was decided; None where no word is."""
        for _ in range(_TRIES):
            there = self._read(move)
            if there is None or there[0] in _DECIDED:
                return None if there is None else there[0]
            with suppress(Changed):
                self._put(move, mine, there[1])
                self._tidy(move, there[0], mine)
                return mine
        raise StorageFailed(f"A move could not be noted in {self._words.address}: it changes all the time.")

    def _tidy(self, move: str, before: Word, word: Word) -> None:
        """Remove what no engine looks at any more: of a session that stays the file; and the word too, unless the other
        engine has begun to take it in."""
        if word == "stayed":
            self._delete(move, words=before == "waits")

    def _read(self, move: str) -> tuple[Word, str] | None:
        """Return the word of a move, and the tag of that content."""
        with self._said():
            try:
                content, tag = self._words.read(f"{move}.state")
            except FileNotFoundError:
                return None
            for word in _WORDS:
                if content == word.encode():
                    return word, tag
            raise OSError(f"{move}.state has none of the words {', '.join(_WORDS)}")

    def _put(self, move: str, word: Word, tag: str | None) -> None:
        """Raises Changed, also where the word is not there any more."""
        with self._said():
            try:
                self._words.compare_and_put(f"{move}.state", word.encode(), tag)
            except FileNotFoundError:
                raise Changed from None

    def _delete(self, move: str, *, words: bool = True) -> None:
        names = [f"{move}{SUFFIX}", *([f"{move}.state"] if words else [])]
        try:
            self._words.delete(names)
        except OSError as error:
            log.warning("Objects that no session needs are left in the store of moves: %s", error)

    def _not_there(self) -> UsageError:
        return UsageError(f"No session waits in {self._words.address} for this move: it has ended.")

    @contextmanager
    def _said(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise StorageFailed(f"A move could not be noted in {self._words.address}: {error}.") from error
