"""Steering rules as both sides see them. Values only."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, Protocol, TypeVar

from djinn_jupyter.errors import UsageError
from djinn_jupyter.wire.edits import Edit, require_coefficient
from djinn_jupyter.wire.frozen import Frozen

PassesMeant = Literal["prompt", "new"]


class RuleDescription(Frozen, frozen=True):
    """A steering rule and its counts: passes met, changed, |change| / |value| of the last passes, oldest first. `what`
    is the rule in words; no pass meets one that is not `enabled`. `onward`, `on`, `when` as in `Steer`; `note` as in a
    breakpoint. `passes_refused` passes could not have it, the first of this run for the reason `trouble`."""

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
    """Return the rule that a dose-response gives its coefficients: that of a number, or the only one. Raises UsageError
    where that is none, or has no coefficient."""
    rules = tuple(rules)
    there = [rule for rule in rules if number in (None, rule.number)]
    if len(there) != 1:
        raise UsageError(_not_one(tuple(rule.number for rule in rules), number))
    require_coefficient(there[0].edit, f"A dose-response of rule {there[0].number}")
    return there[0]
