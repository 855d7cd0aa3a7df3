"""The lengths of a request's lists, held to the model before anything reads their entries. A list of positions is at
most as long as the model's context; lines of tokens, edges and cells are held to it where they are used."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from functools import cache
from typing import Any

import msgspec
from msgspec import inspect

from djinn_jupyter.engine.model.discovery.model_map import Anatomy
from djinn_jupyter.engine.model.hooks.taps import Tap
from djinn_jupyter.engine.scheduling.tokenizing import limit
from djinn_jupyter.errors import UsageError
from djinn_jupyter.methods.circuits.engine.edges import READERS
from djinn_jupyter.wire.bounds import BOUNDED_BY


def extents(anatomy: Anatomy, context: int | None) -> dict[str, int]:
    """Return how long lists may be by what bounds them. Of edges it is at least the number there is: from every writer
    to every reader."""
    ends = Counter[str]()
    for (point, _), tap in anatomy.taps.items():
        if isinstance(tap, Tap):
            ends[point] += tap.heads or 1
    writers, readers = 1 + ends["z"] + ends["mlp_out"], 1 + sum(ends[point] for point in READERS)
    return {"positions": limit(context), "tokens": limit(context), "edges": writers * readers}


def require_extents(message: msgspec.Struct, positions: int) -> None:
    """Raise UsageError for a list of more positions than the model has."""
    for field in _of_positions(type(message)):
        value = getattr(message, field)
        if isinstance(value, msgspec.Struct):
            require_extents(value, positions)
        elif value is not None and len(value) > positions:
            raise UsageError(
                f"{field} has {len(value):,} entries and the model {positions:,} positions: name each position once."
            )


@cache
def _of_positions(kind: type[msgspec.Struct]) -> tuple[str, ...]:
    """Return the fields of a struct that list positions, or hold structs that may."""
    shape = inspect.type_info(kind)
    assert isinstance(shape, inspect.StructType)
    return tuple(field.name for field in shape.fields if any(_names_positions(one) for one in _parts(field.type)))


def _names_positions(shape: Any) -> bool:
    if isinstance(shape, inspect.StructType):
        return bool(_of_positions(shape.cls))
    return isinstance(shape, inspect.Metadata) and (shape.extra or {}).get(BOUNDED_BY) == "positions"


def _parts(shape: Any) -> Iterator[Any]:
    if isinstance(shape, inspect.UnionType):
        for one in shape.types:
            yield from _parts(one)
    else:
        yield shape
