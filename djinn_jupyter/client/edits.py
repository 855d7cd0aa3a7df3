"""The kinds of edits as a user makes them: in Python (`dj.scale(0.9)`) and in words (`scale 0.9`), one entry of `KINDS`
each. Imports no msgspec until an edit is made: `%load_ext` needs the words alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal, get_args

from djinn_jupyter.client.arguments import shown
from djinn_jupyter.client.arrays import from_any
from djinn_jupyter.client.patches import Patch
from djinn_jupyter.client.patches import patch_from as patch_from
from djinn_jupyter.errors import InvalidEdit

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
    """Replace the value: by an array that broadcasts to the selected part, or by a number.

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
    """x + coef * |x| * vector / |vector|: the vector, as long as `coef` times the value of each position is."""
    from djinn_jupyter.wire.edits import NormMatch

    return NormMatch(vector=from_any(vector), coef=_number("coef", coef))


def orthogonal(direction: object, coef: float = 0.0) -> Orthogonal:
    """x with its component along `direction` multiplied by `coef`; what is orthogonal to it stays."""
    from djinn_jupyter.wire.edits import Orthogonal

    return Orthogonal(direction=from_any(direction), coef=_number("coef", coef))


def projection_cap(direction: object, low: float | None = None, high: float | None = None) -> ProjectionCap:
    """x with its component along the unit vector of `direction` between `low` and `high`; None leaves that side
    open."""
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
    """Return a number that is an argument of an edit: one of Python's, of numpy's or of torch's. Raises InvalidEdit."""
    try:
        return float(given)
    except (TypeError, ValueError, OverflowError):
        raise InvalidEdit(f"{name} is a number, not {shown(given)}.") from None


def _bound(name: str, given: Any) -> float | None:
    return None if given is None else _number(name, given)


# --- the same in words -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """An option of one kind's words, and the parameter of its constructor that takes it."""

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
