"""Steering rules: an edit that applies at every pass, with counts that show whether it changed anything.

The field's worst failure is an intervention that silently did nothing, so a rule counts the passes it met and changed,
and records the relative size |after - before| / |before| of each change. The sizes stay on the device until they are
read."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final

from torch import Tensor

from djinn_jupyter.engine.interventions import edit_kinds, edits
from djinn_jupyter.engine.interventions.change import Change
from djinn_jupyter.engine.interventions.site_value import Moment
from djinn_jupyter.engine.model.hooks.taps import Tap
from djinn_jupyter.errors import InvalidEdit
from djinn_jupyter.wire.edits import Edit
from djinn_jupyter.wire.nouns import RuleDescription
from djinn_jupyter.wire.sites import Site

SIZES_TOLD: Final = 256


@dataclass(slots=True, kw_only=True)
class Rule:
    """`positions` are absolute; negative ones count from the end of each pass; None is the whole pass. A rule that is
    not `enabled` applies to no pass."""

    number: int
    site: Site
    tap: Tap
    edit: Edit
    positions: tuple[int, ...] | None
    enabled: bool = True
    passes_met: int = 0
    passes_changed: int = 0
    _sizes: list[Tensor] = field(default_factory=list)
    _read: list[float] = field(default_factory=list)

    @property
    def what(self) -> str:
        """The rule as a person would say it."""
        return edits.spell_at(self.edit, self.site, self.positions)

    def apply(self, moment: Moment, counted: bool) -> tuple[Tensor, Change] | None:
        """Return the edited raw tensor and the change; None where no position of the rule is in this pass. `counted` is
        False when part of a pass is rerun."""
        rows = self.rows_in(moment.row_positions())
        if counted:
            self.passes_met += 1
        if rows is not None and not rows:
            return None
        part = edits.take(moment.value, rows, self.site.selector)
        changed = edit_kinds.compute(part, self.edit)
        size = edits.relative_size(part, changed)
        if counted:
            self.passes_changed += 1
            self._sizes.append(size)
        made = moment.replace(edits.put(moment.value, changed, rows, self.site.selector))
        return made, Change(what=self.what, size=size, rule=self.number)

    def enable(self, enabled: bool) -> None:
        self.enabled = enabled

    def mark(self) -> Callable[[], None]:
        """Return a callable that restores the present counts."""
        met, changed, sizes = self.passes_met, self.passes_changed, len(self._sizes)

        def go_back() -> None:
            self.passes_met, self.passes_changed = met, changed
            del self._sizes[sizes:]

        return go_back

    def rows_in(self, available: range) -> list[int] | None:
        """Return the rows that it changes in a pass over these positions; None for all of them."""
        if self.positions is None:
            return None
        absolute = [available.stop + p if p < 0 else p for p in self.positions]
        return [available.index(p) for p in absolute if p in available]

    def sizes(self) -> tuple[float, ...]:
        """Return the relative size of every change so far; waits for those that are still on the device."""
        if self._sizes:
            self._read.extend(float(size) for size in self._sizes)
            self._sizes.clear()
        return tuple(self._read)

    def describe(self) -> RuleDescription:
        sizes = self.sizes()
        return RuleDescription(
            number=self.number,
            site=str(self.site),
            edit=self.edit,
            positions=self.positions,
            passes_met=self.passes_met,
            passes_changed=self.passes_changed,
            last_relative_size=sizes[-1] if sizes else None,
            mean_relative_size=sum(sizes) / len(sizes) if sizes else None,
            relative_sizes=sizes[-SIZES_TOLD:],
            what=self.what,
            enabled=self.enabled,
        )

    def take_up(self, passes_met: int, passes_changed: int, sizes: Iterable[float]) -> None:
        """Restore the counts and sizes that the rule had when it was saved."""
        self.passes_met, self.passes_changed = passes_met, passes_changed
        self._read = list(sizes)

    def reset(self) -> None:
        """Reset the counts and sizes for a new run."""
        self.passes_met = self.passes_changed = 0
        self._sizes.clear()
        self._read.clear()


def check_rule(edit: Edit, tap: Tap, width: int) -> None:
    """Raise InvalidEdit for a rule that could never apply."""
    if not tap.editable:
        raise InvalidEdit(f"{tap.site} can be looked at, not changed: {tap.reason}.")
    edit_kinds.check(edit, width)
