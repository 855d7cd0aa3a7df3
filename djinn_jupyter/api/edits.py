"""The kinds of edits as a user writes them: in Python (`dj.scale(0.9)`) and in words (`scale 0.9`), one entry of
`KINDS` each. Imports msgspec only when an edit is made: `%load_ext` needs the words alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Literal, get_args

from djinn_jupyter.api.arguments import shown
from djinn_jupyter.api.arrays import from_any
from djinn_jupyter.api.patches import Patch
from djinn_jupyter.api.patches import patch_from as patch_from
from djinn_jupyter.errors import InvalidEdit, UsageError

if TYPE_CHECKING:
    from djinn_jupyter.wire.edits import (
        Add,
        Clamp,
        Edit,
        NormMatch,
        Orthogonal,
        ProjectionCap,
        ProjectOut,
        Scale,
        Set,
        Zero,
    )


__all__ = [
    "add",
    "clamp",
    "norm_match",
    "orthogonal",
    "patch_from",
    "project_out",
    "projection_cap",
    "scale",
    "set_to",
    "zero",
]


def scale(factor: float) -> Scale:
    """x * factor

    >>> dj.scale(0.5)
    Scale(factor=0.5)
    """
    from djinn_jupyter.wire.edits import Scale

    return Scale(factor=_number("factor", factor))


def add(vector: object, coef: float = 1.0) -> Add:
    """x + coef * vector. `vector` broadcasts against [positions, features] (or [positions, heads, head features])."""
    from djinn_jupyter.wire.edits import Add

    return Add(vector=from_any(vector), coef=_number("coef", coef))


def set_to(value: object) -> Set:
    """Replace the value by a number, or by an array that broadcasts to the selected part.

    >>> dj.set_to([0.0, 1.0]).value.shape
    (2,)
    """
    from djinn_jupyter.wire.edits import Set

    return Set(value=from_any(value))


def zero() -> Zero:
    """0"""
    from djinn_jupyter.wire.edits import Zero

    return Zero()


def clamp(low: float | None = None, high: float | None = None) -> Clamp:
    """min(max(x, low), high); None leaves that side open."""
    from djinn_jupyter.wire.edits import Clamp

    if low is None and high is None:
        raise InvalidEdit("clamp needs low, high or both.")
    return Clamp(low=_bound("low", low), high=_bound("high", high))


def project_out(direction: object) -> ProjectOut:
    """x without its component along `direction`, over the last axis."""
    from djinn_jupyter.wire.edits import ProjectOut

    return ProjectOut(direction=from_any(direction))


def norm_match(vector: object, coef: float = 1.0) -> NormMatch:
    """x + coef * |x| * vector / |vector|: at each position the added vector is `coef` times as long as the value."""
    from djinn_jupyter.wire.edits import NormMatch

    return NormMatch(vector=from_any(vector), coef=_number("coef", coef))


def orthogonal(direction: object, coef: float = 0.0) -> Orthogonal:
    """x with its component along `direction` multiplied by `coef`; the orthogonal part stays."""
    from djinn_jupyter.wire.edits import Orthogonal

    return Orthogonal(direction=from_any(direction), coef=_number("coef", coef))


def projection_cap(direction: object, low: float | None = None, high: float | None = None) -> ProjectionCap:
    """x with its component along the unit vector of `direction` between `low` and `high`; None is no bound."""
    from djinn_jupyter.wire.edits import ProjectionCap

    if low is None and high is None:
        raise InvalidEdit("projection_cap needs low, high or both.")
    return ProjectionCap(direction=from_any(direction), low=_bound("low", low), high=_bound("high", high))


def as_edit(value: object) -> Edit | Patch:
    """Return an Edit or a patch unchanged, and any other value as a Set edit. InvalidEdit for text."""
    from djinn_jupyter.wire.edits import Edit

    if isinstance(value, str):
        raise InvalidEdit(f"In Python an edit is dj.scale(0.5) or its like, an array or a number, not {shown(value)}.")
    if isinstance(value, Patch):
        return value
    return value if isinstance(value, get_args(Edit)) else set_to(value)


def _number(name: str, given: Any) -> float:
    """Return a numeric argument of an edit (of Python, numpy or torch) as a Python number. Raises InvalidEdit."""
    try:
        return float(given)
    except (TypeError, ValueError, OverflowError):
        raise InvalidEdit(f"{name} is a number, not {shown(given)}.") from None


def _bound(name: str, given: Any) -> float | None:
    return None if given is None else _number(name, given)


# --- the same in words -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """An option in the words of one kind, and the constructor parameter that it sets."""

    flag: str
    parameter: str
    metavar: str
    help: str
    type: Callable[[str], Any] = str

    @property
    def key(self) -> str:
        """The name under which a parser stores its value."""
        return self.flag.lstrip("-").replace("-", "_")


@dataclass(frozen=True, slots=True)
class EditWords:
    """A kind of edit in words: its constructor, an example, and how each word after the first is read. A `value` is a
    number or a vector, a `bound` a number or `none`."""

    make: Callable[..., Edit | Patch]
    example: str
    words: tuple[Literal["number", "bound", "value", "session"], ...] = ()
    options: tuple[Option, ...] = ()


KINDS: Final = {
    "scale": EditWords(scale, "scale 0.9", ("number",)),
    "add": EditWords(
        add,
        "add VECTOR --coef 4",
        ("value",),
        (Option(flag="--coef", parameter="coef", metavar="C", help="how many times the vector", type=float),),
    ),
    "set": EditWords(set_to, "set VALUE", ("value",)),
    "zero": EditWords(zero, "zero"),
    "clamp": EditWords(clamp, "clamp LOW HIGH (`none` leaves a side open)", ("bound", "bound")),
    "project_out": EditWords(project_out, "project_out DIRECTION", ("value",)),
    "norm_match": EditWords(norm_match, "norm_match VECTOR COEF", ("value", "number")),
    "orthogonal": EditWords(orthogonal, "orthogonal DIRECTION COEF", ("value", "number")),
    "projection_cap": EditWords(projection_cap, "projection_cap DIRECTION LOW HIGH", ("value", "bound", "bound")),
    "patch_from": EditWords(
        patch_from,
        "patch_from SESSION",
        ("session",),
        (
            Option(flag="--from-site", parameter="site", metavar="SITE", help="the site there; default the same"),
            Option(flag="--from-positions", parameter="positions", metavar="P", help="positions there; the same"),
        ),
    ),
}
EXAMPLES: Final = "; ".join(kind.example for kind in KINDS.values())


# Parse edits from words: `scale 0.9`, `add VECTOR`, `patch_from paris`, as `KINDS` declares them. The caller resolves
# each argument to a number, a vector or a session: a notebook looks in its namespace, an editor accepts numbers and
# lists.

NO_OPTIONS: Final[Mapping[str, Any]] = {}


def parse_edit(
    words: Sequence[str],
    *,
    value: Callable[[str], Any],
    find: Callable[[str], Any],
    options: Mapping[str, Any] = NO_OPTIONS,
) -> Edit | Patch:
    """Return the edit that the words spell. `options` are parsed options by their keys; None and options of other
    commands are ignored. Raises UsageError."""
    name, *rest = [unquoted(word) for word in words] or [""]
    kind = KINDS.get(name)
    if kind is None:
        raise UsageError(f"{name!r} is no edit; write one of: {EXAMPLES}.")
    if len(rest) != len(kind.words):
        raise UsageError(f"{name} takes {len(kind.words)} argument{'s'[: len(kind.words) != 1]}: {kind.example}.")
    _refuse_options_of_others(name, options)
    read: dict[str, Callable[[str], Any]] = {
        "number": partial(_number_in, value),
        "bound": partial(_bound_in, value),
        "value": value,
        "session": find,
    }
    given = {one.parameter: options[one.key] for one in kind.options if options.get(one.key) is not None}
    return kind.make(*(read[word](text) for word, text in zip(kind.words, rest, strict=True)), **given)


def _refuse_options_of_others(name: str, options: Mapping[str, Any]) -> None:
    for owner, kind in KINDS.items():
        if owner != name and any(options.get(one.key) is not None for one in kind.options):
            raise UsageError(f"{_flags(kind)} to {owner}, not to {name}.")


def _flags(kind: EditWords) -> str:
    flags = [one.flag for one in kind.options]
    return f"{' and '.join(flags)} belong{'s' if len(flags) == 1 else ''}"


def unquoted(text: str) -> str:
    """Return `text` without the pair of quotes around it, if there is one."""
    return text[1:-1] if len(text) >= 2 and text[0] == text[-1] and text[0] in "\"'" else text


def _number_in(value: Callable[[str], Any], expression: str) -> float:
    found = value(expression)
    try:
        return float(found)
    except (TypeError, ValueError):
        raise UsageError(f"{expression!r} is not one number.") from None


def _bound_in(value: Callable[[str], Any], expression: str) -> float | None:
    return None if expression.lower() == "none" else _number_in(value, expression)
