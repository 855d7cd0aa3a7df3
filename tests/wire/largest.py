"""Requests in which one list is as long as its type lets it be, and all else is ordinary: for every list of every
request, also those within structs and within lists."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from msgspec import inspect

from tests.wire import values

MANY = 4096  # shorter lists are cheap to read, however often
Made = Iterator[Any]


def lists_of(kind: type) -> tuple[str, ...]:
    """Return the long lists of a kind of request, each by its path."""
    return tuple(dict.fromkeys(path for path, _ in _of_struct(kind)))


def requests(kind: type, path: str, most: int | None = None, **beside: Any) -> Iterator[Any]:
    """Yield requests with this list at its limit, or with `most` entries, and these fields `beside` it where the kind
    has them. A list of numbers is yielded twice: with one number again and again, and with all numbers up from 0."""
    known = {name: value for name, value in beside.items() if name in kind.__struct_fields__}
    for found, make in _of_struct(kind, most):
        if found == path:
            for fields in make():
                long = path.partition(".")[0].partition("[")[0]
                yield kind(**fields | known | {long: fields[long]})


def _of_struct(kind: type, most: int | None = None) -> Iterator[tuple[str, Callable[[], Made]]]:
    """Yield the path of each list of a struct, and what makes fields with that list at its limit, or
    with `most` entries."""
    shape = inspect.type_info(kind)
    assert isinstance(shape, inspect.StructType)
    bare = {f.name: next(iter(values.ordinary(f.type, f.name))) for f in shape.fields if f.required}
    for field in shape.fields:
        for path, make in _of(field.type, field.name, most):
            yield f"{field.name}{path}", lambda make=make, name=field.name: ({**bare, name: one} for one in make())


def _of(shape: Any, name: str, fewer: int | None) -> Iterator[tuple[str, Callable[[], Made]]]:
    match shape:
        case inspect.Metadata(type=marked):
            yield from _of(marked, name, fewer)
        case inspect.UnionType(types=types):
            for one in types:
                yield from _of(one, name, fewer)
        case inspect.StructType(cls=cls):
            for path, make in _of_struct(cls, fewer):
                yield f".{path}", lambda make=make, cls=cls: (cls(**fields) for fields in make())
        case inspect.VarTupleType(item_type=item, max_length=most):
            if most is not None and most > MANY:
                yield "", lambda: _lists(item, name, min(most, fewer or most))
            for path, make in _of(item, name, fewer):
                yield f"[]{path}", lambda make=make: ((one,) for one in make())


def _lists(item: Any, name: str, most: int) -> Made:
    usual = next(iter(values.ordinary(item, name)))
    yield (usual,) * most
    if isinstance(item, inspect.IntType) and (item.ge or 0) <= 0:
        yield tuple(range(most))
