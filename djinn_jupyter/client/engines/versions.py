"""An engine of another version of Djinn: told by its entry in the registry alone, before a word is said to it. Its
methods, which may be others, are told by its Welcome."""

from __future__ import annotations

import shlex

from djinn_jupyter import extensions
from djinn_jupyter.errors import VersionMismatch
from djinn_jupyter.wire import protocol
from djinn_jupyter.wire.greeting import Welcome
from djinn_jupyter.wire.registry import Entry
from djinn_jupyter.wire.texts import shown


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


def method_lines(welcome: Welcome) -> list[str]:
    """Return a line for each method of a stranger that an engine and this side share, for each method that they do not
    share, and for each that one of them leaves out."""
    here, there, left_out = extensions.methods(), dict(welcome.methods), extensions.troubles().values()
    named, apart = {method.name: str(method) for method in here}, protocol.apart(there)
    shared = (method for method in here if not method.is_ours and method.name in there and method.name not in apart)
    return [
        *map(str, shared),
        *(f"the engine {word} {named.get(name, name)}" for name, word in apart.items()),
        *left_out,
        *(f"in the engine: {shown(why)}" for why in welcome.left_out if why not in left_out),
    ]
