"""The store of objects that a journal needs: each appears whole or not at all, a read sees the last write, and one is
replaced on the condition that it is still as it was read (an atomic compare-and-put)."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import Protocol

from djinn_jupyter.errors import UsageError


class Changed(Exception):
    """The object is not as it was read, or there is one already."""


class JournalStore(Protocol):
    """Methods raise OSError where the store does not do what it is asked; whether it was done is then not known. May be
    used from any thread."""

    address: str

    def read(self, name: str, /) -> tuple[bytes, str]:
        """Return an object, and the tag of this content. FileNotFoundError where there is none."""

    def compare_and_put(self, name: str, content: bytes, tag: str | None, /) -> str:
        """Put an object in the place of the one with that tag (None: where there is none), and return its tag. Raises
        Changed."""

    def put(self, name: str, content: bytes, /) -> None: ...

    def delete(self, names: Sequence[str], /) -> None:
        """Delete the objects that are there among those."""

    def names(self) -> list[str]:
        """Return the names of all objects; the list may be older than the last writes."""


def require_compare_and_put(store: JournalStore) -> None:
    """Raise UsageError where the store does not heed the condition of a put: two engines could have one journal."""
    name = f".{secrets.token_hex(8)}.probe"
    try:
        first = store.compare_and_put(name, b"first", None)
        second = store.compare_and_put(name, b"second", first)
        heeded = (
            _refuses(store, name, None) and _refuses(store, name, first) and store.read(name) == (b"second", second)
        )
    finally:
        store.delete([name])
    if not heeded:
        raise UsageError(
            f"The store of {store.address} has no atomic compare-and-put (If-None-Match and If-Match of a PUT), so two "
            "engines could write one journal: give another store, or a folder that all machines mount."
        )


def _refuses(store: JournalStore, name: str, tag: str | None) -> bool:
    try:
        store.compare_and_put(name, b"third", tag)
    except Changed:
        return True
    return False
