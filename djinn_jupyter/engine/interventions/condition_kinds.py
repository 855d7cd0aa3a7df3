"""The kinds of a condition's parts (a truth, a number, a text, or several), found before anything is computed.

Notes what can be computed but has no meaning: a number for a truth, or two sides that can never be equal."""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

ScalarKind = Literal["truth", "number", "text"]
ValueKind = ScalarKind | tuple["ValueKind", ...]
"""A tuple: the kinds of several values."""

Noun = Literal["condition", "metric"]  # the word for an expression in its errors

OF_NAMES: Final[dict[str, ScalarKind]] = {
    "step": "number",
    "position": "number",
    "token": "text",
    "token_id": "number",
    "norm": "number",
    "value": "number",
    "top1": "text",
}
_WORDS: Final[dict[ScalarKind, str]] = {"truth": "true or false", "number": "a number", "text": "a text"}
_COMPARED: Final[dict[ValueKind, str]] = {"number": "> 0.5", "text": "== ' Paris'"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Operand:
    """A part of an expression: its kind, how it is computed, and the parts of a tuple."""

    node: ast.expr
    kind: ValueKind
    value: Callable[..., Any]
    items: tuple[Operand, ...] | None = None

    def __str__(self) -> str:
        return (
            f"`{ast.unparse(self.node)}` is {'several values' if isinstance(self.kind, tuple) else _WORDS[self.kind]}"
        )


def of_constant(value: bool | int | float | str) -> ScalarKind:
    return "truth" if isinstance(value, bool) else "text" if isinstance(value, str) else "number"


class KindRules:
    """Each method returns the kind of a part from those below it; `disagreement` is the first that it found."""

    def __init__(self, noun: Noun = "condition") -> None:
        self._read = "a condition has" if noun == "condition" else "what `if`, `and`, `or` and `not` read has"
        self.disagreement: str | None = None

    def truths(self, parts: Sequence[Operand]) -> ValueKind:
        for part in parts:
            if part.kind != "truth":
                self._note(
                    f"{part}, and {self._read} to be true or false: compare it, "
                    f"as in `{ast.unparse(part.node)} {_COMPARED.get(part.kind, '== (1, 2)')}`."
                )
        return "truth"

    def numbers(self, parts: Sequence[Operand]) -> ValueKind:
        """Return `number`, and note each operand that is none; a truth counts as 0 or 1."""
        for part in parts:
            if part.kind not in ("number", "truth"):
                self._note(f"{part}, and arithmetic is for numbers.")
        return "number"

    def alike(self, parts: Sequence[Operand]) -> ValueKind:
        for part in parts[1:]:
            if part.kind != parts[0].kind:
                self._note(f"{parts[0]}, and {part}: one of them is taken, so both have to be of a kind.")
        return parts[0].kind if parts else ()

    def compared(self, sides: Sequence[Operand], ops: Sequence[ast.cmpop]) -> ValueKind:
        for one, op, other in zip(sides, ops, sides[1:], strict=False):
            if not _agree(one.kind, op, other.kind):
                self._note(f"{one}, and {other}: a comparison is of two of a kind.")
        return "truth"

    def of_call(self, name: str, parts: Sequence[Operand]) -> ValueKind:
        match name, parts:
            case "len", [counted]:
                if counted.kind in ("truth", "number"):
                    self._note(f"{counted}, which has no length.")
                return "number"
            case "abs", [_]:
                return self.numbers(parts)
            case (("min" | "max"), [Operand(items=tuple() as items)]):
                return self.alike(items)
            case (("min" | "max"), [_, _, *_]):
                return self.alike(parts)
        self._note(f"{name} takes {'two values or more' if name in ('min', 'max') else 'one value'}.")
        return "number"

    def _note(self, disagreement: str) -> None:
        self.disagreement = self.disagreement or disagreement


def _agree(one: ValueKind, op: ast.cmpop, other: ValueKind) -> bool:
    if not isinstance(op, ast.In | ast.NotIn):
        return one == other
    if isinstance(other, tuple):
        return all(kind == one for kind in other)
    return one == other == "text"
