"""Values of any request, from the types of its fields: ordinary ones, extreme ones that the types allow, wrong ones.

A request is a dictionary of fields here, so that it can be wrong. Each varies one field and leaves the others ordinary.
"""

from __future__ import annotations

import math
import os
import struct
from collections.abc import Iterator
from functools import cache
from typing import Any, Final, Literal

from msgspec import inspect

from djinn_jupyter.errors import DjinnError
from djinn_jupyter.wire.arrays import Array

Quality = Literal["ordinary", "extreme", "wrong"]
WORDS: Final[dict[str, tuple[str, ...]]] = {
    "move": ("0123456789abcdef" * 2,),
    "site": ("resid_post.3", "5", "z.3[1]", "pattern.2", "logits", "model.layers.2.mlp"),
    "sites": ("resid_post.3", "1"),
    "when": ("step == 0", "norm > 1", "top1 == 'x'"),
    "expression": ("norm * 2", "step", "position > 1"),
    "session": ("other", "a"),
    "name": ("another name",),
    "metrics": ("logit(17) - logit(42)", "prob(3)"),
    "over": ("position", "layer", "head", "neuron", "point", "coef"),
    "receivers": ("logits", "q.3[1]"),
    "folder": (f"{os.environ['JUPYTER_DATA_DIR']}/collected",),
}
STRANGE: Final = (
    "\0",
    "\x1b[31mred",
    "\u202eback",
    "é" * 300,
    "\U0001f9de\u200d",
    "a/b",
    "../..",
    ".",
    " ",
    "%s{x}",
    "'\\ud800'",
)
LARGE: Final = (0, -1, 1, 2**31, -(2**31), 2**63 - 1, -(2**63), 2**64 - 1)
BEYOND: Final = (10**30, -(10**30))
FLOATS: Final = (0.0, -0.0, 5e-324, 1e-300, -1e-300, 1e300, -1e300, 3.5e38, math.inf, -math.inf, math.nan)
NO_NUMBER: Final[tuple[Any, ...]] = ("3", None, [1], {}, b"3")
NO_TEXT: Final[tuple[Any, ...]] = (3, None, ["a"], {}, b"a", "\ud800")
LONGEST: Final = 3000
MOST_LINES: Final = 50  # of prompts, cells and pairs: an engine may be about to compute each


@cache
def requests(kind: type, quality: Quality) -> tuple[dict[str, Any], ...]:
    """Fields for requests of a class: none is named `session` where the asker says which. Each value is beside ordinary
    ones of all other fields, and beside those alone that a request must have."""
    shape = inspect.type_info(kind)
    assert isinstance(shape, inspect.StructType)
    fields = [field for field in shape.fields if field.name != "session"]
    usual = {field.name: next(iter(_values(field.type, field.name, "ordinary"))) for field in fields}
    bare = {field.name: usual[field.name] for field in fields if field.required}
    beside = [usual] if len(bare) == len(usual) else [usual, bare]
    varied = [
        {**others, f.name: value} for others in beside for f in fields for value in _values(f.type, f.name, quality)
    ]
    if quality == "wrong":
        return (*varied, {**usual, "unheard_of": 1})
    return (*beside, *varied)


def ordinary(shape: Any, name: str) -> Iterator[Any]:
    """Yield ordinary values of the type of a field."""
    yield from _values(shape, name, "ordinary")


def _values(shape: Any, name: str, quality: Quality) -> Iterator[Any]:
    match shape:
        case inspect.UnionType(types=types):
            for one in sorted(types, key=lambda one: isinstance(one, inspect.NoneType)):
                yield from _values(one, name, quality)
        case inspect.Metadata(type=marked):
            yield from _values(marked, name, quality)
        case inspect.StructType(cls=cls):
            yield from _structs(cls, quality)
        case inspect.CustomType(cls=cls) if cls is Array:
            yield from ARRAYS[quality]
        case inspect.VarTupleType(item_type=item, min_length=least, max_length=most):
            plain = isinstance(item, inspect.IntType | inspect.FloatType | inspect.StrType)
            longest = LONGEST if plain else MOST_LINES
            yield from _tuples(item, name, quality, least or 0, min(most or longest, longest))
        case inspect.TupleType(item_types=items):
            yield from _rows(items, name, quality)
        case inspect.IntType(ge=least, le=most):
            yield from _integers(quality, least, most)
        case inspect.StrType(min_length=least, max_length=most):
            yield from _texts(name, quality, least or 0, most)
        case inspect.FloatType():
            yield from {"ordinary": (0.5, 2.0), "extreme": FLOATS, "wrong": NO_NUMBER}[quality]
        case inspect.BoolType():
            yield from ((False, True) if quality != "wrong" else (None, 2, "yes"))
        case inspect.LiteralType(values=values):
            yield from (WORDS.get(name, values) if quality != "wrong" else ("nothing like it", None, 3))
        case inspect.NoneType():
            yield from ((None,) if quality != "wrong" else ())
        case _:
            raise NotImplementedError(f"no values for {shape}")


def _rows(items: tuple[Any, ...], name: str, quality: Quality) -> Iterator[Any]:
    """Yield tuples of a fixed length in which one entry varies; wrong ones have another length too."""
    usual = tuple(next(iter(_values(item, name, "ordinary"))) for item in items)
    for number, item in enumerate(items):
        yield from ((*usual[:number], value, *usual[number + 1 :]) for value in _values(item, name, quality))
    if quality == "wrong":
        yield from (usual[:-1], (*usual, *usual[:1]), *NO_TEXT[:2])


def _structs(cls: Any, quality: Quality) -> Iterator[Any]:
    """Yield the structs that the class lets be made; of wrong ones the fields that it refuses too."""
    for fields in _plain(cls, quality):
        try:
            yield cls(**fields)
        except (DjinnError, TypeError):
            if quality == "wrong":
                yield fields


def _plain(cls: Any, quality: Quality) -> Iterator[dict[str, Any]]:
    shape = inspect.type_info(cls)
    assert isinstance(shape, inspect.StructType)
    usual = {field.name: next(iter(_values(field.type, field.name, "ordinary"))) for field in shape.fields}
    yield usual
    for field in shape.fields:
        for value in _values(field.type, field.name, quality):
            yield {**usual, field.name: value}


def _integers(quality: Quality, least: int | None, most: int | None) -> Iterator[Any]:
    low, high = -(2**63) if least is None else least, 2**64 - 1 if most is None else most
    if quality == "ordinary":
        yield max(low, 1)
        yield max(low, 3)
    elif quality == "extreme":
        yield from {low, high, *(n for n in LARGE if low <= n <= high)}
    else:
        yield from (low - 1, high + 1, *BEYOND, *NO_NUMBER)


def _texts(name: str, quality: Quality, least: int, most: int | None) -> Iterator[Any]:
    if quality == "ordinary":
        yield from WORDS.get(name, ("a",))
    elif quality == "extreme":
        yield from (one for one in STRANGE if len(one) >= least)
        yield "x" * min(most or LONGEST, LONGEST)
    else:
        yield from (*NO_TEXT, *([""] if least else []), *(["x" * (most + 1)] if most and most < LONGEST else []))


def _tuples(item: Any, name: str, quality: Quality, least: int, most: int) -> Iterator[Any]:
    usual = next(iter(_values(item, name, "ordinary")))
    if quality == "ordinary":
        yield (usual,) * max(least, 1)
        yield (usual,) * min(max(least, 3), most)
    elif quality == "extreme":
        yield from ((), (usual,) * most) if not least else ((usual,) * most,)
        yield from ((value,) * max(least, 1) for value in _values(item, name, "extreme"))
    else:
        yield from (5, "text", None, {}, (usual, None))
        yield from ((value,) for value in _values(item, name, "wrong"))


def _array(shape: tuple[int, ...], *values: float) -> Array:
    count = math.prod(shape)
    return Array(dtype="float32", shape=shape, data=struct.pack(f"<{count}f", *(values * count)[:count]))


ARRAYS: Final[dict[Quality, tuple[Any, ...]]] = {
    "ordinary": (_array((32,), 0.5), _array((), 0.5), _array((1, 32), 1.0)),
    "extreme": (
        _array((0,)),
        _array((32,), math.nan),
        _array((32,), 3e38),
        _array((32,), 0.0),
        _array((1,) * 8, 1.0),
        _array((0, 32)),
        _array((4096,), 1.0),
        Array(dtype="bool", shape=(32,), data=bytes(32)),
        Array(dtype="int64", shape=(32,), data=bytes(256)),
        Array(dtype="bfloat16", shape=(32,), data=b"\xff" * 64),
    ),
    "wrong": (3, None, "array", {"dtype": "float32", "shape": [2], "frame": 7}),
}
