"""The lengths of a request's lists, held to the model before anything reads their entries. A list of positions is at
most as long as the model's context; other lists are held to it where they are used."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

import msgspec
from msgspec import inspect

from djinn_jupyter.engine.scheduling.tokenizing import limit
from djinn_jupyter.errors import UsageError
from djinn_jupyter.wire.bounds import BOUNDED_BY


def extents(context: int | None) -> dict[str, int]:
    """Return how long lists may be by what bounds them. Methods add their own nouns."""
    return {"positions": limit(context), "tokens": limit(context)}


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
