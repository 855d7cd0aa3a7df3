"""The kinds of a condition's parts (a truth, a number, a text, or several), found before anything is computed.

Rejects what can be computed but has no meaning: a number for a truth, or two sides that can never be equal."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

from djinn_jupyter.errors import InvalidCondition

One = Literal["truth", "number", "text"]
Kind = One | tuple["Kind", ...]
"""A tuple: the kinds of several values."""

_OF_NAMES: Final[dict[str, One]] = {
    "step": "number",
    "position": "number",
    "token_id": "number",
    "norm": "number",
    "token": "text",
    "top1": "text",
}
_WORDS: Final[dict[One, str]] = {"truth": "true or false", "number": "a number", "text": "a text"}
_COMPARED: Final[dict[Kind, str]] = {"number": "> 0.5", "text": "== ' Paris'"}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Part:
    """A part with its kind, found once per part, as parts can be nested."""

    node: ast.expr
    kind: Kind

    def __str__(self) -> str:
        return (
            f"`{ast.unparse(self.node)}` is {'several values' if isinstance(self.kind, tuple) else _WORDS[self.kind]}"
        )


def require_truth(text: str) -> None:
    """Raise InvalidCondition unless the condition `text`, which is known to parse, is true or false in a meaningful
    way."""
    try:
        _truth(ast.parse(text.strip(), mode="eval").body)
    except RecursionError:
        raise InvalidCondition(f"A condition cannot be nested as deeply as {text[:40]!r} and so on.") from None


def _truth(node: ast.expr) -> None:
    part = _Part(node=node, kind=_kind(node))
    if part.kind != "truth":
        raise InvalidCondition(
            f"{part}, and a condition has to be true or false: compare it, "
            f"as in `{ast.unparse(node)} {_COMPARED.get(part.kind, '== (1, 2)')}`."
        )


def _kind(node: ast.expr) -> Kind:
    """Return the kind of a part, after checking that its own parts agree."""
    match node:
        case ast.Constant(value=value):
            return "truth" if isinstance(value, bool) else "text" if isinstance(value, str) else "number"
        case ast.Name(id=name):
            return _OF_NAMES[name]
        case ast.BoolOp(values=parts):
            for part in parts:
                _truth(part)
            return "truth"
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            _truth(operand)
            return "truth"
        case ast.UnaryOp(operand=operand):
            return _number(operand)
        case ast.BinOp(left=left, right=right):
            return _numbers((left, right))
        case ast.Compare(left=left, ops=ops, comparators=rights):
            sides = [_Part(node=side, kind=_kind(side)) for side in (left, *rights)]
            for op, one, other in zip(ops, sides, sides[1:], strict=False):
                _compare(one, op, other)
            return "truth"
        case ast.Tuple(elts=items) | ast.List(elts=items) | ast.Set(elts=items):
            return tuple(_kind(item) for item in items)
        case ast.IfExp(test=test, body=then, orelse=other):
            _truth(test)
            return _alike((then, other))
        case ast.Call(func=ast.Name(id=name), args=args):
            return _of_call(name, args)
    raise AssertionError(f"{ast.unparse(node)} was parsed")


def _of_call(name: str, args: Sequence[ast.expr]) -> Kind:
    match name, args:
        case "p", _:
            return "number"
        case "len", [one]:
            counted = _Part(node=one, kind=_kind(one))
            if counted.kind in ("truth", "number"):
                raise InvalidCondition(f"{counted}, which has no length.")
            return "number"
        case "abs", [one]:
            return _number(one)
        case (("min" | "max"), [ast.Tuple(elts=items) | ast.List(elts=items) | ast.Set(elts=items)]):
            return _alike(items)
        case (("min" | "max"), [_, _, *_]):
            return _alike(args)
    raise InvalidCondition(f"{name} takes {'two values or more' if name in ('min', 'max') else 'one value'}.")


def _compare(one: _Part, op: ast.cmpop, other: _Part) -> None:
    if not isinstance(op, ast.In | ast.NotIn):
        agree = one.kind == other.kind
    elif isinstance(other.kind, tuple):
        agree = all(kind == one.kind for kind in other.kind)
    else:
        agree = one.kind == other.kind == "text"
    if not agree:
        raise InvalidCondition(f"{one}, and {other}: a comparison is of two of a kind.")


def _number(node: ast.expr) -> Kind:
    return _numbers((node,))


def _numbers(nodes: Sequence[ast.expr]) -> Kind:
    """Return "number" where all nodes are numbers, else raise InvalidCondition. A truth counts as 0 or 1."""
    for part in [_Part(node=node, kind=_kind(node)) for node in nodes]:
        if part.kind not in ("number", "truth"):
            raise InvalidCondition(f"{part}, and arithmetic is for numbers.")
    return "number"


def _alike(nodes: Sequence[ast.expr]) -> Kind:
    parts = [_Part(node=node, kind=_kind(node)) for node in nodes]
    for part in parts[1:]:
        if part.kind != parts[0].kind:
            raise InvalidCondition(f"{parts[0]}, and {part}: one of them is taken, so both have to be of a kind.")
    return parts[0].kind if parts else ()
