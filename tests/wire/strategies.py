"""Any value of any struct that crosses the wire, drawn from the structs themselves."""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import msgspec
from hypothesis import strategies as st

from djinn_jupyter.wire.arrays import ITEM_BYTES, Array
from djinn_jupyter.wire.nouns import Sampling, SamplingChanges
from djinn_jupyter.wire.request_base import COLDEST, LONGEST_REST
from djinn_jupyter.wire.requests import Rest

NUMBERS = st.integers(-(2**63), 2**63 - 1)
TEXTS = st.text(st.characters(codec="utf-8"), max_size=8)
WARM = st.floats(COLDEST, 1e9)
COLD_OR_WARM = st.just(0.0) | WARM
OF_TOKENS: dict[str, st.SearchStrategy[Any]] = {
    "top_k": st.none() | st.integers(0, 2**63 - 1),
    "top_p": st.none() | st.floats(0, 1, exclude_min=True),
    "min_p": st.none() | st.floats(0, 1),
    "repetition_penalty": st.none() | st.floats(1e-3, 1e3),
}
SAMPLINGS = {
    Sampling: st.builds(Sampling, temperature=COLD_OR_WARM, seed=NUMBERS, model_defaults=st.booleans(), **OF_TOKENS),
    SamplingChanges: st.builds(
        SamplingChanges, temperature=st.none() | COLD_OR_WARM, seed=st.none() | NUMBERS, **OF_TOKENS
    ),
}
CHECKED = {(Rest, "expected_seconds"): st.floats(0, LONGEST_REST)}  # bounds that a struct checks itself


@st.composite
def arrays(draw: st.DrawFn) -> Array:
    dtype = draw(st.sampled_from(sorted(ITEM_BYTES)))
    shape = tuple(draw(st.lists(st.integers(0, 3), max_size=3)))
    size = math.prod(shape) * ITEM_BYTES[dtype]
    return Array(dtype=dtype, shape=shape, data=draw(st.binary(min_size=size, max_size=size)))


@cache
def of(kind: Any) -> st.SearchStrategy[Any]:
    """Values of a struct class or of a union of them."""
    return _of(msgspec.inspect.type_info(kind))


def _of(shape: Any) -> st.SearchStrategy[Any]:
    match shape:
        case msgspec.inspect.StructType(cls=cls) if cls in SAMPLINGS:
            return SAMPLINGS[cls]
        case msgspec.inspect.StructType(cls=cls, fields=fields) | msgspec.inspect.DataclassType(cls=cls, fields=fields):
            # deferred: only so can a struct contain itself
            parts = {f.name: st.deferred(lambda f=f: _of(f.type)) for f in fields}
            return st.builds(cls, **{name: CHECKED.get((cls, name), part) for name, part in parts.items()})
        case msgspec.inspect.Metadata(type=marked):
            return _of(marked)
        case msgspec.inspect.UnionType(types=types):
            return st.one_of([_of(t) for t in types])
        case msgspec.inspect.CustomType(cls=cls) if cls is Array:
            return arrays()
        case msgspec.inspect.VarTupleType(item_type=item, min_length=least, max_length=most):
            drawn = st.lists(_of(item), min_size=least or 0, max_size=min(most or 3, (least or 0) + 3))
            return drawn.map(tuple)
        case msgspec.inspect.TupleType(item_types=items):
            return st.tuples(*[_of(item) for item in items])
        case msgspec.inspect.DictType(key_type=key, value_type=value):
            return st.dictionaries(_of(key), _of(value), max_size=3)
        case msgspec.inspect.IntType(ge=least, le=most):
            return st.integers(least if least is not None else -(2**63), most if most is not None else 2**63 - 1)
        case msgspec.inspect.StrType(pattern=pattern, max_length=most) if pattern is not None:
            return st.from_regex(pattern, fullmatch=True).filter(lambda drawn: most is None or len(drawn) <= most)
        case msgspec.inspect.StrType(min_length=least):
            return st.text(st.characters(codec="utf-8"), min_size=least or 0, max_size=(least or 0) + 8)
        case msgspec.inspect.FloatType(gt=above, ge=least, lt=below, le=most):
            low, high = (above if least is None else least), (below if most is None else most)
            finite = st.floats(low, high, allow_nan=False, allow_infinity=False)  # JSON knows neither
            return finite.filter(lambda drawn: drawn != above and drawn != below)
        case msgspec.inspect.BoolType():
            return st.booleans()
        case msgspec.inspect.NoneType():
            return st.none()
        case msgspec.inspect.LiteralType(values=values):
            return st.sampled_from(values)
    raise NotImplementedError(f"no strategy for {shape}")
