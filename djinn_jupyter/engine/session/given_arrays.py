"""The arrays that clients give a session to keep, and what it records on the host beside its line. Reads only."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, TypeVar

import msgspec
from torch import Tensor

from djinn_jupyter.engine.forward.frame import Frame
from djinn_jupyter.engine.interventions.fed_line import FedLine
from djinn_jupyter.engine.session.history import StopRecord
from djinn_jupyter.engine.session.session import Session
from djinn_jupyter.wire.arrays import Array

Part = TypeVar("Part")
TOKEN_BYTES: Final = 8  # of a token in a tuple, whose number is shared with the line
POSITION_BYTES: Final = 40  # of a position in a tuple, with its number


def arrays_within(value: object) -> Iterator[Array]:
    """Yield the arrays of a message, or of a part of one."""
    return parts_within(value, Array)


def parts_within(value: object, kind: type[Part]) -> Iterator[Part]:
    """Yield the parts of this kind of structs and what they hold."""
    if isinstance(value, kind):
        yield value
    elif isinstance(value, msgspec.Struct):
        for name in value.__struct_fields__:
            yield from parts_within(getattr(value, name), kind)
    elif isinstance(value, tuple | list | dict):
        for part in value.values() if isinstance(value, dict) else value:
            yield from parts_within(part, kind)


def given_arrays(session: Session) -> Iterator[Array]:
    """Yield the arrays of the session's rules and edits, which passes take to the device."""
    for rule in session.rules.values():
        yield from arrays_within(rule.edit)
    for edit in session.edits:
        yield from arrays_within(edit.edit)


def past_arrays(session: Session) -> Iterator[Array]:
    """Yield the arrays of rules under which passes were run, also of those that are gone: such passes are run again."""
    each = [one.rules for one in session.pass_log.passes]
    each += [one.rules for line in _lines(session) for one in line.passes]
    for rule in {id(rule): rule for rules in each for rule in rules}.values():
        yield from arrays_within(rule.edit)


def recorded(session: Session) -> Iterator[tuple[object, int]]:
    """Yield what the session keeps on the host beside its line, each thing with its bytes; forks have the same ones."""
    yield from ((array, array.nbytes) for array in past_arrays(session))
    kept: list[StopRecord | Frame | FedLine] = [*session.history.stops, *_frames(session), *_lines(session)]
    yield from ((one.tokens, TOKEN_BYTES * len(one.tokens)) for one in kept)
    for watch in session.watches.values():
        yield watch.values, watch.bytes_held
        yield watch.positions, POSITION_BYTES * sum(map(len, watch.positions))
        if watch.unit is not None:
            yield watch.unit, watch.unit.nbytes
    for rule in session.rules.values():
        yield rule, rule.bytes_recorded
    for generation in session.generations:
        yield generation.drawn, sum(state.nbytes for state in generation.drawn[:1]) * len(generation.drawn)
    yield from ((edit, edit.rows_nHD.nbytes) for edit in session.pass_log.edited)
    yield from ((raw, raw.nbytes) for raw in _overrides(session) if not _is_item(session, raw))


def copies_on_device(session: Session) -> Iterator[Tensor]:
    """Yield what its rules keep of their arrays on the device."""
    for rule in session.rules.values():
        yield from rule.copies


def _lines(session: Session) -> Iterator[FedLine]:
    for watch in session.watches.values():
        yield from watch.lines.values()


def _frames(session: Session) -> Iterator[Frame]:
    kept = [frame for stop in session.history.stops for frame in (stop.frame, stop.left_as)]
    kept += [session.frame, *(passes.entry for passes in session.pass_log.passes)]
    yield from (frame for frame in kept if frame is not None)


def _overrides(session: Session) -> Iterator[Tensor]:
    """Yield the values that were put into passes which stopped on their way."""
    for passes in session.pass_log.passes:
        yield from () if passes.entry is None else (override.raw for override in passes.entry.overrides)


def _is_item(session: Session, kept: Tensor) -> bool:
    """Return whether the bytes are the engine's to move: those of the host are not, where the device is another."""
    return session.storage_table is not None and kept.device in session.storage_table.devices
