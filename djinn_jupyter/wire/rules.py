"""Steering rules as both sides see them. Values only."""

from __future__ import annotations

from typing import Literal

from djinn_jupyter.wire.edits import Edit
from djinn_jupyter.wire.frozen import Frozen

PassesMeant = Literal["prompt", "new"]


class RuleDescription(Frozen, frozen=True):
    """A steering rule and its books: passes met, changed, |change| / |value| of the last passes, oldest first. `what`
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
