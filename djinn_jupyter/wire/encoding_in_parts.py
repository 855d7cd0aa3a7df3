"""A message encoded in parts. msgspec gives way to no other thread while it encodes, and takes 40 ms for a million
pairs; between two parts Python lets the others run. The bytes are those that msgspec makes of the whole.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any, Final

import msgspec
from msgspec import inspect

RUN: Final = 4096  # entries at most of a part
FEW: Final = 8  # entries of a list that count as one
_SCALARS: Final = (
    inspect.IntType,
    inspect.FloatType,
    inspect.StrType,
    inspect.BoolType,
    inspect.NoneType,
    inspect.LiteralType,
)
_MAP, _LIST = (0x80, b"\xde", b"\xdf"), (0x90, b"\xdc", b"\xdd")


def encoded(message: msgspec.Struct, encoder: msgspec.msgpack.Encoder) -> bytes | memoryview:
    """Return the bytes of a message."""
    if entries_of(message) <= RUN:
        return encoder.encode(message)
    written = bytearray()
    _write(message, encoder, written)
    return memoryview(written)


def _write(value: Any, encoder: msgspec.msgpack.Encoder, written: bytearray) -> None:
    if entries_of(value) <= RUN:
        encoder.encode_into(value, written, -1)
    elif isinstance(value, msgspec.Struct):
        _write_struct(value, encoder, written)
    else:
        written += _head(len(value), *_LIST)
        for run in _runs(value):
            if len(run) == 1:
                _write(run[0], encoder, written)
            else:
                written += memoryview(encoder.encode(run))[len(_head(len(run), *_LIST)) :]


def _write_struct(value: msgspec.Struct, encoder: msgspec.msgpack.Encoder, written: bytearray) -> None:
    config, defaults = value.__struct_config__, _defaults(value) if value.__struct_config__.omit_defaults else {}
    named = zip(value.__struct_encode_fields__, value.__struct_fields__, strict=True)
    fields = {key: name for key, name in named if name not in defaults or getattr(value, name) != defaults[name]}
    written += _head(len(fields) + (config.tag is not None), *_MAP)
    if config.tag is not None:
        written += encoder.encode(config.tag_field) + encoder.encode(config.tag)
    for key, name in fields.items():
        encoder.encode_into(key, written, -1)
        _write(getattr(value, name), encoder, written)


def _defaults(value: msgspec.Struct) -> dict[str, Any]:
    names, given = value.__struct_fields__, value.__struct_defaults__
    return dict(zip(names[len(names) - len(given) :], given, strict=True))


def _head(count: int, short: int, long: bytes, longest: bytes) -> bytes:
    """Return the bytes before the entries of a list or map."""
    if count < 16:
        return bytes([short | count])
    return long + count.to_bytes(2, "big") if count < 2**16 else longest + count.to_bytes(4, "big")


def _runs(values: tuple[Any, ...]) -> Iterator[tuple[Any, ...]]:
    """Yield the entries in runs of no more than RUN entries together, where a single one is not longer."""
    for start in range(0, len(values), RUN):
        run = values[start : start + RUN]
        if all(map(_is_flat, set(map(type, run)))) or _are_short(run):
            yield run
            continue
        first = entries = 0
        for at, size in enumerate(map(entries_of, run)):
            if at > first and entries + size > RUN:
                yield run[first:at]
                first, entries = at, 0
            entries += size
        yield run[first:]


def _are_short(values: tuple[Any, ...]) -> bool:
    """Return whether these are short lists of numbers and texts, as edges are."""
    return (
        set(map(type, values)) == {tuple} and max(map(len, values)) <= FEW and all(map(_is_flat, map(type, values[0])))
    )


def entries_of(value: Any) -> int:
    """Return how much there is to encode, as far as it is no more than RUN: a number or a text counts as one."""
    if isinstance(value, msgspec.Struct):
        return 1 + sum(entries_of(getattr(value, name)) for name in _lists_of(type(value)))
    if not isinstance(value, tuple | list):
        return 1
    are_flat = len(value) > RUN or all(map(_is_flat, set(map(type, value))))
    return 1 + (len(value) if are_flat else sum(map(entries_of, value)))


def _is_flat(kind: type) -> bool:
    """Return whether the values of a type hold no lists."""
    return not (_lists_of(kind) if issubclass(kind, msgspec.Struct) else issubclass(kind, tuple | list | dict))


@cache
def _lists_of(kind: type[msgspec.Struct]) -> tuple[str, ...]:
    """Return the fields of a struct that may hold lists."""
    shape = inspect.type_info(kind)
    assert isinstance(shape, inspect.StructType)
    return tuple(field.name for field in shape.fields if not all(map(_is_scalar, _parts(field.type))))


def _is_scalar(part: inspect.Type) -> bool:
    return isinstance(part, _SCALARS) or (
        isinstance(part, inspect.Metadata) and all(map(_is_scalar, _parts(part.type)))
    )


def _parts(shape: inspect.Type) -> tuple[inspect.Type, ...]:
    return shape.types if isinstance(shape, inspect.UnionType) else (shape,)
