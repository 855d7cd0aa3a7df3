"""Every list and text of a request is bounded by its type, and a long list by the model: a new field without a bound
fails here."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from msgspec import inspect

from djinn_jupyter.methods.datasets.request import Score
from djinn_jupyter.wire import kinds
from djinn_jupyter.wire.arrays import Array
from djinn_jupyter.wire.base import BOUNDED_BY, FEW, respelled

NOUNS = {"positions", "tokens", "edges", "cells", "matrix"}
PLAIN = (inspect.IntType, inspect.FloatType, inspect.BoolType, inspect.NoneType, inspect.LiteralType)


@pytest.mark.parametrize("kind", kinds.known().requests, ids=lambda kind: kind.__name__)
def test_every_list_and_text_of_a_request_has_a_bound(kind: type) -> None:
    assert list(_unbounded(inspect.type_info(kind), kind.__name__)) == []


def _unbounded(shape: Any, path: str, noun: str | None = None) -> Iterator[str]:
    match shape:
        case inspect.Metadata(type=marked, extra=extra):
            noun = (extra or {}).get(BOUNDED_BY)
            if noun not in NOUNS:
                yield f"{path}: {noun}"
            yield from _unbounded(marked, path, noun)
        case inspect.VarTupleType(item_type=item, max_length=most):
            if most is None or (most > FEW and noun is None):
                yield f"{path}: {most}"
            yield from _unbounded(item, f"{path}[]")
        case inspect.StrType(max_length=most, pattern=pattern):
            if most is None and pattern is None:
                yield f"{path}: a text"
        case inspect.StructType(fields=fields):
            for field in fields:
                yield from _unbounded(field.type, f"{path}.{field.name}")
        case inspect.UnionType(types=parts) | inspect.TupleType(item_types=parts):
            for part in parts:
                yield from _unbounded(part, path)
        case inspect.CustomType(cls=cls) if cls is Array:
            return
        case _ if not isinstance(shape, PLAIN):
            yield f"{path}: {shape}"


def test_a_line_of_tokens_is_not_walked_for_names() -> None:
    line = tuple(range(1000))
    spelled = respelled(Score(session="s", prompts=(line, "b")), lambda name: f"ada@{name}")
    assert (spelled.session, spelled.prompts) == ("ada@s", (line, "ada@b"))
    assert spelled.prompts[0] is line
    lines = (line, (1, 2), ())
    assert respelled(Score(session="s", prompts=lines), lambda name: f"ada@{name}").prompts is lines
