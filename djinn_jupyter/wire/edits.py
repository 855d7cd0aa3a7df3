"""The edits of an activation, as data: never code."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Annotated, Final, Literal, Protocol, TypeVar

import msgspec
from msgspec import Meta

from djinn_jupyter.errors import UsageError
from djinn_jupyter.wire.arrays import Array
from djinn_jupyter.wire.base import Frozen, OwnName, Positions

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
    """An array that broadcasts to the selected part; a number has shape ()."""

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
    """x with its component along `direction` multiplied by `coef`; the orthogonal part stays."""

    direction: Array
    coef: float = 0.0


class ProjectionCap(EditBase, frozen=True):
    """x with its component along the unit vector of `direction` between `low` and `high`; a bound of None is open."""

    direction: Array
    low: float | None = None
    high: float | None = None


class PatchFrom(EditBase, frozen=True):
    """The value there in another session's stopped pass.

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
    """Return an edit, which has a factor or coefficient, with this one."""
    return msgspec.structs.replace(edit, **{COEFFICIENTS[type(edit)]: coef})


def name_of(edit: EditBase) -> str:
    """Return the word that a user writes for an edit of this kind, such as norm_match."""
    return _NEXT_WORD.sub("_", type(edit).__name__).lower()


PassesMeant = Literal["prompt", "new"]


class RuleDescription(Frozen, frozen=True):
    """A steering rule and its counts: passes reached, changed, |change| / |value| of the last passes, oldest first.
    `what` is the rule in words; one that is not `enabled` applies to no pass. `onward`, `on`, `when` as in `Steer`;
    `note` as in a breakpoint. `passes_refused` passes could not apply it, the first of this run for the reason
    `trouble`."""

    number: int
    site: str
    edit: Edit
    positions: tuple[int, ...] | None
    passes_met: int
    passes_changed: int
    last_relative_size: float | None
    mean_relative_size: float | None
    relative_sizes: tuple[float, ...] = ()
    what: str = ""
    enabled: bool = True
    onward: int | None = None
    on: PassesMeant | None = None
    when: str | None = None
    note: str | None = None
    passes_refused: int = 0
    trouble: str | None = None


class AnyRule(Protocol):
    """A steering rule of either side."""

    @property
    def number(self) -> int: ...
    @property
    def edit(self) -> Edit: ...


RuleHere = TypeVar("RuleHere", bound=AnyRule)


def _not_one(numbers: tuple[int, ...], wanted: int | None) -> str:
    here = ", ".join(map(str, numbers))
    if not numbers:
        return "A dose-response gives a steering rule its coefficients, and there is none here: set one first."
    if wanted is None:
        return (
            f"A dose-response gives one steering rule its coefficients; name one of {here} (--rule, in Python rule=)."
        )
    return f"There is no steering rule {wanted} to give coefficients to; there are: {here}."


def dosed(rules: Iterable[RuleHere], number: int | None) -> RuleHere:
    """Return the rule that takes a dose-response's coefficients: the rule of a number, or the only one. Raises
    UsageError where there is none, or it has no coefficient."""
    rules = tuple(rules)
    there = [rule for rule in rules if number in (None, rule.number)]
    if len(there) != 1:
        raise UsageError(_not_one(tuple(rule.number for rule in rules), number))
    require_coefficient(there[0].edit, f"A dose-response of rule {there[0].number}")
    return there[0]
