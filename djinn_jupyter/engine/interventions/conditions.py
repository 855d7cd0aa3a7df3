"""The condition language of breakpoints: one Python expression over a few names, parsed with `ast`, never run by
`eval`.

Names: `step` (0 is the prompt), `position`, `token` (its text), `token_id`, `norm` (L2 norm of the value at the
position), `top1` (text of the most likely token by the logit lens there) and `p("text")` (probability of a token by the
logit lens). Operators: comparisons, `in`, and / or / not, + - * / // %, `a if c else b`; functions abs, min, max, len.
A breakpoint fires at the first position of the pass where the expression is true."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Protocol

from djinn_jupyter.errors import InvalidCondition


class Scope(Protocol):
    """The values that an expression can read about one position. Each is computed at its first read."""

    def read(self, name: str) -> Any: ...

    def probability(self, text: str) -> float: ...


NAMES: Final = ("step", "position", "token", "token_id", "norm", "top1")
DEEPEST: Final = 100  # levels; each takes at most three of the thousand frames of a thread's stack
LENS_NAMES: Final = frozenset({"top1", "p"})
_FUNCTIONS: Final[dict[str, Callable[..., Any]]] = {"abs": abs, "min": min, "max": max, "len": len}
_COMPARE: Final[dict[type[ast.cmpop], Callable[[Any, Any], Any]]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.In: lambda a, b: a in b,
    ast.NotIn: lambda a, b: a not in b,
}
_ARITHMETIC: Final[dict[type[ast.operator], Callable[[Any, Any], Any]]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}
Compiled = Callable[[Scope], Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    """A parsed expression. `names` are those it reads, `tokens` the texts given to `p`. With no name beyond `step` it
    holds for all positions or for none. `value` computes the expression, `holds` its truth."""

    text: str
    names: frozenset[str]
    tokens: frozenset[str]
    value: Compiled

    def holds(self, scope: Scope) -> bool:
        return bool(self.value(scope))

    @property
    def needs_lens(self) -> bool:
        return bool(self.names & LENS_NAMES)

    @property
    def same_for_all_positions(self) -> bool:
        return self.names <= {"step"}


def parse(text: str, *, kept: bool = False) -> Condition:
    """Return the parsed condition; InvalidCondition names the part that is not understood. A `kept` (restored)
    condition may be as deep as the engine that saved it allowed."""
    try:
        tree = ast.parse(text.strip(), mode="eval")
        if not kept:
            _require_shallow(tree.body, text)
        names: set[str] = set()
        body = _compile(tree.body, names)
    except (RecursionError, MemoryError):
        raise _too_deep(text) from None
    except (SyntaxError, ValueError):
        raise InvalidCondition(f"{text!r} is not an expression such as `step > 0 and p(' Paris') < 0.5`.") from None
    tokens = {text for node in ast.walk(tree) for text in _asked_tokens(node)}

    def value(scope: Scope) -> Any:
        try:
            return body(scope)
        except (TypeError, ZeroDivisionError, ValueError, OverflowError, RecursionError) as error:
            raise InvalidCondition(f"The condition {text!r} could not be evaluated: {error}.") from None

    return Condition(text=text, names=frozenset(names), tokens=frozenset(tokens), value=value)


def _require_shallow(node: ast.expr, text: str) -> None:
    """Raise InvalidCondition beyond a fixed depth: the room on the interpreter's stack depends on the caller."""
    level = [node]
    for _ in range(DEEPEST):
        level = [part for whole in level for part in ast.iter_child_nodes(whole) if isinstance(part, ast.expr)]
    if level:
        raise _too_deep(text)


def _too_deep(text: str) -> InvalidCondition:
    return InvalidCondition(
        f"The condition {text[:40]!r} and so on cannot be evaluated: it is nested deeper than {DEEPEST} levels; "
        "write it with fewer."
    )


def _asked_tokens(node: ast.AST) -> list[str]:
    match node:
        case ast.Call(func=ast.Name(id="p"), args=[ast.Constant(value=str() as text)]):
            return [text]
    return []


def _compile(node: ast.expr, names: set[str]) -> Compiled:
    match node:
        case ast.Constant(value=bool() | int() | float() | str() as value):
            return lambda scope: value
        case ast.Name(id=name):
            return _compile_name(name, names)
        case ast.BoolOp(op=op, values=parts):
            return _compile_all(isinstance(op, ast.And), [_compile(part, names) for part in parts])
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            inner = _compile(operand, names)
            return lambda scope: not inner(scope)
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            number = _compile(operand, names)
            return lambda scope: -number(scope)
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _ARITHMETIC:
            return _compile_arithmetic(_ARITHMETIC[type(op)], _compile(left, names), _compile(right, names))
        case ast.Compare(left=left, ops=ops, comparators=rights) if all(type(op) in _COMPARE for op in ops):
            steps = [(_COMPARE[type(op)], _compile(right, names)) for op, right in zip(ops, rights, strict=True)]
            return _compile_chain(_compile(left, names), steps)
        case ast.Tuple(elts=items) | ast.List(elts=items) | ast.Set(elts=items):
            parts_ = [_compile(item, names) for item in items]
            return lambda scope: tuple(part(scope) for part in parts_)
        case ast.IfExp(test=test, body=then, orelse=other):
            a, b, c = (_compile(part, names) for part in (test, then, other))
            return lambda scope: b(scope) if a(scope) else c(scope)
        case ast.Call(func=ast.Name(id=name), args=args, keywords=[]):
            return _compile_call(name, args, names)
    raise InvalidCondition(f"{ast.unparse(node)!r} is not allowed in a condition.")


def _compile_name(name: str, names: set[str]) -> Compiled:
    if name not in NAMES:
        raise InvalidCondition(f"A condition knows no {name!r}; it knows {', '.join(NAMES)} and p('text').")
    names.add(name)
    return lambda scope: scope.read(name)


def _compile_all(conjunction: bool, parts: list[Compiled]) -> Compiled:
    if conjunction:
        return lambda scope: all(part(scope) for part in parts)
    return lambda scope: any(part(scope) for part in parts)


def _compile_arithmetic(operate: Callable[[Any, Any], Any], left: Compiled, right: Compiled) -> Compiled:
    def compute(scope: Scope) -> Any:
        a, b = left(scope), right(scope)
        if not (isinstance(a, int | float) and isinstance(b, int | float)):
            raise TypeError(f"arithmetic is for numbers, not {a!r} and {b!r}")
        return operate(a, b)

    return compute


def _compile_chain(first: Compiled, steps: list[tuple[Callable[[Any, Any], Any], Compiled]]) -> Compiled:
    def compare(scope: Scope) -> bool:
        left = first(scope)
        for holds, right_of in steps:
            right = right_of(scope)
            if not holds(left, right):
                return False
            left = right
        return True

    return compare


def _compile_call(name: str, args: list[ast.expr], names: set[str]) -> Compiled:
    if name == "p":
        match args:
            case [ast.Constant(value=str() as text)]:
                names.add("p")
                return lambda scope: scope.probability(text)
        raise InvalidCondition("p takes one token in quotes, as in p(' Paris').")
    if name not in _FUNCTIONS:
        raise InvalidCondition(f"A condition knows no function {name!r}; it knows p, {', '.join(_FUNCTIONS)}.")
    call, parts = _FUNCTIONS[name], [_compile(arg, names) for arg in args]
    return lambda scope: call(*(part(scope) for part in parts))
