"""The arrays that clients give a session to keep, and what it records on the host beside its line. Reads only."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from djinn_jupyter.engine.session.session import Session
from djinn_jupyter.wire.arrays import Array


def arrays_within(value: object) -> Iterator[Array]:
    """Yield the arrays of a message, or of a part of one."""
    if isinstance(value, Array):
        yield value
    elif isinstance(value, msgspec.Struct):
        for name in value.__struct_fields__:
            yield from arrays_within(getattr(value, name))
    elif isinstance(value, tuple | list):
        for part in value:
            yield from arrays_within(part)


def given_arrays(session: Session) -> Iterator[Array]:
    """Yield the arrays of the session's rules and edits, which passes take to the device."""
    for rule in session.rules.values():
        yield from arrays_within(rule.edit)
    for edit in session.edits:
        yield from arrays_within(edit.edit)


def recorded_bytes(session: Session) -> int:
    """Return the bytes on the host of what watches have recorded, and of the generators' states before drawn tokens."""
    watched = sum(watch.bytes_held for watch in session.watches.values())
    return watched + sum(sum(state.nbytes for state in one.drawn[:1]) * len(one.drawn) for one in session.generations)
