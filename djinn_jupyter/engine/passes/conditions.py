"""Conditions and metrics: expressions over a value or a row of logits. The kinds of their parts (a truth, a number, a
text, or several) are found before anything is computed.

Notes what can be computed but has no meaning: a number for a truth, or two sides that can never be equal."""

from __future__ import annotations

import ast
import itertools
import math
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, Protocol

import torch
from torch import Tensor

from djinn_jupyter.engine.model.loading.tokenizer import TokenText
from djinn_jupyter.errors import InvalidCondition, NoTokenizer, UsageError
from djinn_jupyter.wire.texts import sendable

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
    """Each method returns the kind of a part from those inside it; `disagreement` is the first one found."""

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
        """Return `number`, and note each operand that is not a number; a truth counts as 0 or 1."""
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


# The readings of one token in a row of logits, for conditions and metrics: each is declared once, in `READINGS`.
# Shapes: V tokens of the vocabulary.


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TokenReading:
    """`of` reads a token in a row of fp32 logits [V]. `add_slope` adds to a row [V] a factor times the gradient with
    respect to the logits, in place; a reading without one says why."""

    of: Callable[[Tensor, int], float]
    add_slope: Callable[[Tensor, float, Tensor, int], None] | None = None
    why_none: str = ""


def _add_one(found_V: Tensor, factor: float, logits_V: Tensor, token: int) -> None:
    found_V[token] += factor


def _probability(logits_V: Tensor, token: int) -> float:
    return float(torch.softmax(logits_V, dim=-1)[token])


def _add_softmax(found_V: Tensor, factor: float, logits_V: Tensor, token: int) -> None:
    probabilities_V = torch.softmax(logits_V, dim=-1)
    found_V -= factor * probabilities_V[token] * probabilities_V
    found_V[token] += factor * probabilities_V[token]


def _rank(logits_V: Tensor, token: int) -> float:
    """Return the rank of a token, 1 for the most likely; NaN where its logit is."""
    return math.nan if logits_V[token].isnan() else float((logits_V > logits_V[token]).sum()) + 1


_PROB: Final = TokenReading(of=_probability, add_slope=_add_softmax)
READINGS: Final[Mapping[str, TokenReading]] = {
    "p": _PROB,
    "prob": _PROB,
    "logit": TokenReading(of=lambda logits_V, token: float(logits_V[token]), add_slope=_add_one),
    "rank": TokenReading(of=_rank, why_none="a rank moves in whole numbers"),
}


def of_token(name: str, logits_V: Tensor, token: int) -> float:
    """Return a reading of a token, by its name."""
    return READINGS[name].of(logits_V.to(torch.float32), token)


# The condition language of breakpoints: one Python expression over a few names, parsed with `ast`, never run by
# `eval`. Names: `step` (0 is the prompt), `position`, `token` (its text), `token_id`, `norm` (L2 norm of the value at
# the position), `value` (the number there, at a site of one feature), `top1` (text of the most likely token by the
# logit lens there). Of a token, by its text or number, the logit lens gives `logit("text")`, its probability
# `prob("text")` or `p("text")`, and `rank("text")` (1 is the most likely). Operators: comparisons, `in`, and / or /
# not, + - * / // %, `a if c else b`; functions abs, min, max, len. A breakpoint fires at the first position of the
# pass where the expression is true.


class Scope(Protocol):
    """The values of an expression's names at one position. Each is computed at its first read."""

    def read(self, name: str) -> Any: ...

    def of_token(self, name: str, token: str | int) -> float: ...


DEEPEST: Final = 100  # levels; each takes at most three of the thousand frames of a thread's stack
TOKEN_FUNCTIONS: Final = tuple(READINGS)
LENS_NAMES: Final = frozenset({"top1", *TOKEN_FUNCTIONS})
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
_MEMBERSHIP: Final = (ast.In, ast.NotIn)
MEASURED: Final = ("value", "norm")  # the names for one number of each row of a site value
Compiled = Callable[[Scope], Any]
EXAMPLES: Final[dict[Noun, str]] = {
    "condition": "step > 0 and p(' Paris') < 0.5",
    "metric": "logit(' Rome') - logit(' Paris')",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """A whole condition that compares one of the `MEASURED` names with a number, as `value > 0.5` does. It is evaluated
    for all rows without a scope for each."""

    name: str
    agree: Callable[[Any, Any], Any]
    number: float

    def holds(self, found: float) -> bool:
        return bool(self.agree(found, self.number))


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    """A parsed expression. `names` are those it reads, `tokens` the texts and `token_ids` the numbers of tokens. With
    no name beyond `step` it is `same_for_all_positions`. `value` computes the expression, `holds` its truth.
    `comparison` is set where the whole is one. `disagreement` says why its truth has no meaning, `no_number` why it is
    not a number; None where it is."""

    text: str
    names: frozenset[str]
    tokens: frozenset[str]
    token_ids: frozenset[int]
    same_for_all_positions: bool
    disagreement: str | None
    no_number: str | None
    value: Compiled
    comparison: Comparison | None

    def holds(self, scope: Scope) -> bool:
        return bool(self.value(scope))

    def require_number(self) -> None:
        if self.no_number is not None:
            raise InvalidCondition(self.no_number)

    def require_truth(self) -> None:
        if self.disagreement is not None:
            raise InvalidCondition(self.disagreement)

    @property
    def needs_lens(self) -> bool:
        return bool(self.names & LENS_NAMES)


def _require_characters(body: ast.expr, text: str) -> None:
    """Raise InvalidCondition for an escaped text that no tokenizer and no message can carry."""
    for node in ast.walk(body):
        said = node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""
        if sendable(said, len(said)) != said:
            raise InvalidCondition(f"{text!r} has one half of a surrogate pair, which is no character.")


def parse(text: str, *, noun: Noun = "condition") -> Condition:
    """Return the parsed condition. InvalidCondition names the part not understood, and calls the whole `noun`."""
    reading = _Reading(noun)
    try:
        body = ast.parse(text.strip(), mode="eval").body
        _require_characters(body, text)
        whole = reading.read(body)
    except (RecursionError, MemoryError):
        raise InvalidCondition(
            f"The {noun} {text[:40]!r} and so on cannot be evaluated: it is nested deeper than {DEEPEST} levels; "
            "write it with fewer."
        ) from None
    except (SyntaxError, ValueError):
        raise InvalidCondition(f"{text!r} is not an expression such as `{EXAMPLES[noun]}`.") from None
    no_number = reading.kinds.disagreement
    if no_number is None and whole.kind != "number":
        no_number = f"{whole}, and a metric has to be a number, as logit(' Paris') is."
    reading.kinds.truths((whole,))

    def value(scope: Scope) -> Any:
        try:
            return whole.value(scope)
        except (TypeError, ZeroDivisionError, ValueError, OverflowError, RecursionError) as error:
            raise InvalidCondition(f"The {noun} {text!r} could not be evaluated: {error}.") from None

    return Condition(
        text=text,
        names=frozenset(reading.names),
        tokens=frozenset(token for token in reading.tokens if isinstance(token, str)),
        token_ids=frozenset(token for token in reading.tokens if isinstance(token, int)),
        same_for_all_positions=reading.names <= {"step"},
        disagreement=reading.kinds.disagreement,
        no_number=no_number,
        value=value,
        comparison=_compared(body),
    )


def _compared(body: ast.expr) -> Comparison | None:
    """Return the comparison that a whole expression is; None for any other."""
    match body:
        case ast.Compare(left=ast.Name(id=name), ops=[op], comparators=[right]) if name in MEASURED:
            number = _number(right)
            if number is not None and not isinstance(op, _MEMBERSHIP):
                return Comparison(name=name, agree=_COMPARE[type(op)], number=number)
    return None


def _number(node: ast.expr) -> float | None:
    """Return the number written there; None without one."""
    match node:
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            found = _number(operand)
            return None if found is None else -found
        case ast.Constant(value=int() | float() as number) if not isinstance(number, bool):
            return number
    return None


class _Reading:
    """One walk over an expression: its names, the kinds of its parts, and their computation."""

    def __init__(self, noun: Noun) -> None:
        self.names: set[str] = set()
        self.tokens: set[str | int] = set()
        self.kinds = KindRules(noun)
        self._noun = noun

    def read(self, node: ast.expr, level: int = 1) -> Operand:
        """Read a part and those inside it. Raises RecursionError below the deepest level, which is fixed, because the
        interpreter's stack depends on the caller."""
        if level > DEEPEST:
            raise RecursionError
        kinds, below, items = self.kinds, level + 1, None
        kind: ValueKind
        match node:
            case ast.Constant(value=bool() | int() | float() | str() as constant):
                kind, value = of_constant(constant), lambda scope: constant
            case ast.Name(id=name):
                kind, value = self._name(name)
            case ast.BoolOp(op=op, values=nodes):
                parts = [self.read(one, below) for one in nodes]
                kind, value = kinds.truths(parts), _all_or_any(isinstance(op, ast.And), parts)
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                inner = self.read(operand, below)
                kind, value = kinds.truths((inner,)), lambda scope: not inner.value(scope)
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                inner = self.read(operand, below)
                kind, value = kinds.numbers((inner,)), lambda scope: -inner.value(scope)
            case ast.BinOp(left=left, op=op, right=right) if type(op) in _ARITHMETIC:
                sides = (self.read(left, below), self.read(right, below))
                kind, value = kinds.numbers(sides), _arithmetic(_ARITHMETIC[type(op)], *sides)
            case ast.Compare(left=left, ops=ops, comparators=rights) if all(type(op) in _COMPARE for op in ops):
                parts = [self.read(one, below) for one in (left, *rights)]
                kind, value = kinds.compared(parts, ops), _chain([_COMPARE[type(op)] for op in ops], parts)
            case ast.Tuple(elts=nodes) | ast.List(elts=nodes) | ast.Set(elts=nodes):
                items = tuple([self.read(one, below) for one in nodes])
                kind, value = tuple(one.kind for one in items), _together(items)
            case ast.IfExp(test=test, body=then, orelse=other):
                a, b, c = self.read(test, below), self.read(then, below), self.read(other, below)
                kinds.truths((a,))
                kind, value = kinds.alike((b, c)), lambda scope: (b if a.value(scope) else c).value(scope)
            case ast.Call(func=ast.Name(id=name), args=args, keywords=[]) if name in TOKEN_FUNCTIONS:
                kind, value = "number", self._of_token(name, args)
            case ast.Call(func=ast.Name(id=name), args=args, keywords=[]):
                call, parts = self._function(name), [self.read(one, below) for one in args]
                kind, value = kinds.of_call(name, parts), lambda scope: call(*(part.value(scope) for part in parts))
            case _:
                raise InvalidCondition(f"{ast.unparse(node)!r} is not allowed in a {self._noun}.")
        return Operand(node=node, kind=kind, value=value, items=items)

    def _name(self, name: str) -> tuple[ValueKind, Compiled]:
        if name not in OF_NAMES:
            known = "" if self._noun == "metric" else f"{', '.join(OF_NAMES)}, and "
            raise InvalidCondition(
                f"A {self._noun} knows no {name!r}; it knows {known}of a token {', '.join(TOKEN_FUNCTIONS)}."
            )
        self.names.add(name)
        return OF_NAMES[name], lambda scope: scope.read(name)

    def _function(self, name: str) -> Callable[..., Any]:
        if name not in _FUNCTIONS:
            raise InvalidCondition(
                f"A {self._noun} knows no function {name!r}; it knows {', '.join((*TOKEN_FUNCTIONS, *_FUNCTIONS))}."
            )
        return _FUNCTIONS[name]

    def _of_token(self, name: str, args: list[ast.expr]) -> Compiled:
        match args:
            case [ast.Constant(value=str() | int() as token)] if not isinstance(token, bool):
                self.names.add(name)
                self.tokens.add(token)
                return lambda scope: scope.of_token(name, token)
        raise InvalidCondition(f"{name} takes one token in quotes, as in {name}(' Paris'), or its number.")


def _all_or_any(conjunction: bool, parts: Sequence[Operand]) -> Compiled:
    if conjunction:
        return lambda scope: all(part.value(scope) for part in parts)
    return lambda scope: any(part.value(scope) for part in parts)


def _together(items: Sequence[Operand]) -> Compiled:
    return lambda scope: tuple(item.value(scope) for item in items)


def _arithmetic(operate: Callable[[Any, Any], Any], left: Operand, right: Operand) -> Compiled:
    def compute(scope: Scope) -> Any:
        a, b = left.value(scope), right.value(scope)
        if not (isinstance(a, int | float) and isinstance(b, int | float)):
            raise TypeError(f"arithmetic is for numbers, not {a!r} and {b!r}")
        return operate(a, b)

    return compute


def _chain(holds: Sequence[Callable[[Any, Any], Any]], sides: Sequence[Operand]) -> Compiled:
    def compare(scope: Scope) -> bool:
        left = sides[0].value(scope)
        for agree, side in zip(holds, sides[1:], strict=True):
            right = side.value(scope)
            if not agree(left, right):
                return False
            left = right
        return True

    return compare


Values = tuple[float, ...]  # one for each metric
EXAMPLE = "logit(' Rome') - logit(' Paris')"


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """`condition` reads only the logits of tokens: those of `tokens`, None where it needs all."""

    condition: Condition
    tokenizer: TokenText
    tokens: tuple[int, ...] | None

    @classmethod
    def parse(cls, text: str, tokenizer: TokenText) -> Metric:
        """Return the metric in `text`. Raises InvalidCondition where it is not a number of the logits."""
        condition = parse(text, noun="metric")
        strange = sorted(condition.names - set(TOKEN_FUNCTIONS))
        if strange:
            raise InvalidCondition(f"A metric reads logits, as in {EXAMPLE}; it knows no {strange[0]!r}.")
        condition.require_number()
        if not condition.names:
            raise InvalidCondition(f"The metric {text!r} reads no logit; write one such as {EXAMPLE}.")
        named = {_token(text, tokenizer) for text in condition.tokens} | condition.token_ids
        tokens = tuple(named) if condition.names == {"logit"} else None
        return cls(condition=condition, tokenizer=tokenizer, tokens=tokens)

    def size(self, logits_V: Tensor) -> float:
        """Return the largest of the logits that it reads, 0 where it reads probabilities or ranks."""
        return 0.0 if self.tokens is None else float(logits_V[list(self.tokens)].abs().max())

    def of(self, logits: Tensor, tokens: tuple[int, ...] | None = None) -> float:
        """Return its value from the logits of `tokens`, or of all where that is None."""
        try:
            return float(self.condition.value(_Row(logits, self.tokenizer, tokens)))
        except OverflowError:
            raise InvalidCondition(f"The metric {self.condition.text[:40]!r} is too large for a number.") from None


@dataclass(frozen=True, slots=True, kw_only=True)
class Metrics:
    """`tokens` are those whose logits any of them reads, None where one needs all."""

    each: tuple[Metric, ...]
    tokens: tuple[int, ...] | None

    @classmethod
    def parse(cls, texts: Sequence[str], tokenizer: TokenText) -> Metrics:
        """Return the metrics in `texts`. Raises InvalidCondition."""
        each = tuple(Metric.parse(text, tokenizer) for text in texts)
        named = [one.tokens for one in each if one.tokens is not None]
        tokens = tuple(dict.fromkeys(itertools.chain.from_iterable(named))) if len(named) == len(each) else None
        return cls(each=each, tokens=tokens)

    def of(self, logits: Tensor, tokens: tuple[int, ...] | None = None) -> Values:
        """Return each value from the logits of `tokens`, or of all where that is None."""
        return tuple(metric.of(logits, tokens) for metric in self.each)

    def sizes(self, logits_V: Tensor) -> Values:
        """Return the largest logit that each reads, 0 where it reads probabilities or ranks."""
        return tuple(metric.size(logits_V) for metric in self.each)

    @property
    def texts(self) -> tuple[str, ...]:
        return tuple(metric.condition.text for metric in self.each)


def _token(text: str, tokenizer: TokenText) -> int:
    """Return the one token with this text. Raises InvalidCondition where there is none; NoTokenizer."""
    try:
        return tokenizer.token_id(text)
    except NoTokenizer:
        raise
    except UsageError as error:
        raise InvalidCondition(str(error)) from None


@dataclass(frozen=True, slots=True)
class _Row:
    logits: Tensor
    tokenizer: TokenText
    tokens: tuple[int, ...] | None

    def read(self, name: str) -> Any:
        raise InvalidCondition(f"A metric knows no {name!r}.")

    def of_token(self, name: str, token: str | int) -> float:
        number = self.tokenizer.token_id(token) if isinstance(token, str) else token
        return of_token(name, self.logits, number if self.tokens is None else self.tokens.index(number))
