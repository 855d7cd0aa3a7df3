"""The head of a journal in a store: one small object that says whose the journal is and which objects it consists of.
It is replaced by compare-and-put alone, so an engine that was taken over changes nothing any more.

    ROOT/head                                 the head
    ROOT/7/STEM.0.session/0-4096              bytes of a journal file, put by the engine of epoch 7
    ROOT/aside/STEM.0.session                 an unusable file; nothing there is ever deleted

What the head does not name is not part of the journal.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final

import msgspec

from djinn_jupyter.engine.persistence.lease import Claimant
from djinn_jupyter.engine.persistence.store.journal_store import Changed, JournalStore

NAME: Final = "head"
FORMAT: Final = 1
_TRIES: Final = 16  # each that fails is another engine's that succeeded, or one of this engine's


class StoredPart(msgspec.Struct, frozen=True, array_like=True):
    """An object with bytes of a journal file, behind those of the part before."""

    object: str
    nbytes: int


class OpenClaim(msgspec.Struct, frozen=True, kw_only=True):
    epoch: int
    claimant: Claimant


class JournalHead(msgspec.Struct, frozen=True, kw_only=True):
    """`claims` are those whose engines may still answer; `claimant` is the engine of the present epoch, also when it
    has ended; `files` are in the order in which they were last written."""

    format: int = FORMAT
    epoch: int = 0
    claimant: Claimant | None = None
    serial: int = 0
    claims: tuple[OpenClaim, ...] = ()
    files: dict[str, tuple[StoredPart, ...]] = {}

    def objects(self) -> set[str]:
        return {part.object for parts in self.files.values() for part in parts}


class HeadObject:
    """Invariant: a change is made to what is in the store, and what `change` returned is there and stays there.

    A put that had no answer may arrive later, as long as the head is as it was: so the next change is put also where it
    changes nothing."""

    def __init__(self, store: JournalStore) -> None:
        self._store = store
        self._known: tuple[JournalHead, str | None] | None = None  # None where the store may have another
        self._unanswered = False
        self._lock = threading.Lock()

    def read(self) -> JournalHead:
        """Return the present head. Raises OSError."""
        return self._read()[0]

    def change(self, change: Callable[[JournalHead], JournalHead]) -> JournalHead:
        """Put what `change` makes of the present head, in one step. An error of `change` ends this with nothing
        changed. Raises OSError, after which either head may be there."""
        with self._lock:
            for _ in range(_TRIES):
                head, tag = self._known or self._read()
                changed = change(head)
                if changed is head and not self._unanswered:
                    self._known = head, tag
                    return head
                try:
                    return self._put(msgspec.structs.replace(changed, serial=head.serial + 1), tag)
                except Changed:
                    continue
        raise OSError(f"the head of the journal in {self._store.address} changes all the time")

    def _put(self, head: JournalHead, tag: str | None) -> JournalHead:
        self._known, self._unanswered = None, True
        tag = self._store.compare_and_put(NAME, msgspec.json.encode(head), tag)
        self._known, self._unanswered = (head, tag), False
        return head

    def _read(self) -> tuple[JournalHead, str | None]:
        try:
            content, tag = self._store.read(NAME)
        except FileNotFoundError:
            return JournalHead(), None
        try:
            head = msgspec.json.decode(content, type=JournalHead)
        except ValueError as error:  # msgspec's errors are ValueErrors
            raise OSError(f"{self._store.address}/{NAME} is no head of a journal ({error})") from None
        if head.format != FORMAT:
            raise OSError(f"the journal in {self._store.address} is of another version of Djinn")
        return head, tag
