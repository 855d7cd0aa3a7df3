"""The edits of an activation, as data: never code."""

from __future__ import annotations

import re
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from djinn_jupyter.errors import UsageError
from djinn_jupyter.wire.arrays import Array
from djinn_jupyter.wire.bounds import Positions
from djinn_jupyter.wire.frozen import Frozen
from djinn_jupyter.wire.naming import OwnName

_NEXT_WORD: Final = re.compile("(?<=[a-z])(?=[A-Z])")


class EditBase(Frozen, tag_field="edit", tag=str.lower):
    """An operation on the selected entries of a site's value at the selected positions."""


class Scale(EditBase, frozen=True):
    """x * factor"""

    factor: float


class Add(EditBase, frozen=True):
    """x + coef * vector; `vector` broadcasts against [positions, features] (or [positions, heads, head features])."""

    vector: Array
    coef: float = 1.0


class Set(EditBase, frozen=True):
    """An array (a number is one of shape ()) that broadcasts to the selected part."""

    value: Array


class Zero(EditBase, frozen=True):
    """0"""


class Clamp(EditBase, frozen=True):
    """min(max(x, low), high); a bound of None is open."""

    low: float | None = None
    high: float | None = None


class ProjectOut(EditBase, frozen=True):
    """x - (x . d) d / |d|^2 along the last axis: removes the component along `direction`."""

    direction: Array


class NormMatch(EditBase, frozen=True):
    """x + coef * |x| * vector / |vector| along the last axis: adds the vector at `coef` times the norm of each row."""

    vector: Array
    coef: float = 1.0


class Orthogonal(EditBase, frozen=True):
    """x with its component along `direction` multiplied by `coef`; what is orthogonal to it stays."""

    direction: Array
    coef: float = 0.0


class ProjectionCap(EditBase, frozen=True):
    """x with its component along the unit vector of `direction` between `low` and `high`; a bound of None is open."""

    direction: Array
    low: float | None = None
    high: float | None = None


class PatchFrom(EditBase, frozen=True):
    """The value that another session's stopped pass has there.

    `site` defaults to the edited one; `positions` (absolute, in the source) to the edited positions.
    """

    session: OwnName
    site: Annotated[str, Meta(max_length=1024)] | None = None
    positions: Positions | None = None


Edit = Scale | Add | Set | Zero | Clamp | ProjectOut | NormMatch | Orthogonal | ProjectionCap | PatchFrom


COEFFICIENTS: Final[dict[type, str]] = {Scale: "factor", Add: "coef", NormMatch: "coef", Orthogonal: "coef"}


def require_coefficient(edit: EditBase, what: str) -> None:
    """Raise UsageError, about `what`, for an edit without a factor or coefficient."""
    if type(edit) not in COEFFICIENTS:
        raise UsageError(
            f"{what} needs an edit with a coefficient: scale, add, norm_match or orthogonal; {name_of(edit)} has none."
        )


def with_coefficient(edit: Edit, coef: float) -> Edit:
    """Return the edit with this factor or coefficient; it has one."""
    return msgspec.structs.replace(edit, **{COEFFICIENTS[type(edit)]: coef})


def name_of(edit: EditBase) -> str:
    """Return the word that a user writes for an edit of this kind, such as norm_match."""
    return _NEXT_WORD.sub("_", type(edit).__name__).lower()
