"""An engine of another version of Djinn: told by its entry in the registry alone, before a word is said to it."""

from __future__ import annotations

import shlex

from djinn_jupyter.errors import VersionMismatch
from djinn_jupyter.wire import protocol
from djinn_jupyter.wire.registry import Entry


def require_this_protocol(entry: Entry) -> None:
    """Raise VersionMismatch where the engine is of another version of Djinn."""
    refusal = refusal_of(entry)
    if refusal is not None:
        raise VersionMismatch(refusal)


def refusal_of(entry: Entry) -> str | None:
    """Say which engine is of another version and what to do; None for one that speaks this protocol."""
    different = difference(entry)
    if different is None:
        return None
    stop = f"`djinn stop --force {shlex.quote(str(entry.identity))}`"
    if entry.in_cluster:
        stop = f"`djinn cluster stop {shlex.quote(str(entry.identity))}`"
    after = "its sessions end with it" if entry.options.no_journal else "its sessions come back then"
    return (
        f"The engine of {entry.identity} (process {entry.pid}) {different}: end it with {stop} and load again; {after}."
    )


def difference(entry: Entry) -> str | None:
    """Return `is of another version of Djinn (...)`; None for one that speaks this protocol."""
    different = protocol.difference(entry.version, entry.protocol)
    return None if different is None else f"is of another version of Djinn ({different})"
