"""Steering rules: an edit that applies at every pass, with counts that show whether it changed anything.

The field's worst failure is an intervention that silently did nothing, so a rule counts the passes it met, changed and
could not change, and records the relative size |after - before| / |before| of each change. The sizes stay on the device
until they are read. Where a value refuses the edit the pass goes on without it, and the rule keeps the reason."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Final

from torch import Tensor

from djinn_jupyter.engine.interventions import edit_kinds, edits
from djinn_jupyter.engine.interventions.change import Change
from djinn_jupyter.engine.interventions.guard import Guard
from djinn_jupyter.engine.interventions.site_value import Moment
from djinn_jupyter.engine.model.hooks.taps import Tap
from djinn_jupyter.errors import InvalidCondition, InvalidEdit
from djinn_jupyter.wire.edits import Edit
from djinn_jupyter.wire.nouns import PassesMeant, RuleDescription
from djinn_jupyter.wire.positions import limits_of
from djinn_jupyter.wire.sites import Site

SIZES_TOLD: Final = 256
ARRAYS_KEPT: Final = 1 << 20  # bytes of an edit's arrays that stay on the device; larger ones are copied at each pass


@dataclass(slots=True, kw_only=True)
class Rule:
    """`taps` are those of `sites`, in order of layers; `named` is how a person spells them. `positions` are absolute,
    negative ones count from the end of each pass, and all from `onward` on belong to them; without either it is the
    whole pass. `on` says which passes. `words` are those of an edit that was made of another one. A rule that is not
    `enabled` applies to no pass. `met_at` and `refused_at` are the first positions of the last pass that met it and of
    the last whose value refused it, for the reason `trouble`; `announced` where that was published."""

    number: int
    named: str
    sites: tuple[Site, ...]
    taps: tuple[Tap, ...]
    edit: Edit
    positions: tuple[int, ...] | None
    onward: int | None = None
    on: PassesMeant | None = None
    guard: Guard | None = None
    words: str | None = None
    note: str | None = None
    enabled: bool = True
    passes_met: int = 0
    passes_changed: int = 0
    passes_refused: int = 0
    trouble: str | None = None
    met_at: int | None = None
    refused_at: int | None = None
    announced: bool = False
    _last: int = -1  # the tap that was met last, by number; the next pass meets one before it, or the same
    _counted: set[str] = field(default_factory=set)  # what this pass was counted as
    _sizes: list[Tensor] = field(default_factory=list)
    _read: list[float] = field(default_factory=list)
    _arrays: dict[str, Tensor] | None = None
    what: str = field(init=False)  # the rule as a person would say it
    places: dict[Site, int] = field(init=False)  # the numbers of the taps, by their sites without selectors

    def __post_init__(self) -> None:
        self.what = ", ".join((f"{self.words or edit_kinds.spell(self.edit)} at {self.named}", *limits_of(self)))
        self.places = {site.whole(): number for number, site in enumerate(self.sites)}

    @property
    def when(self) -> str | None:
        return None if self.guard is None else self.guard.text

    def says(self, other: Rule) -> bool:
        """True where the other rule would do the same."""
        mine, others = (
            (one.named, one.edit, one.positions, one.onward, one.on, one.when, one.words) for one in (self, other)
        )
        return mine == others

    def copy(self) -> Rule:
        """Return the same rule with counts of its own."""
        made = replace(self, _sizes=[], _read=[], _counted=set())
        made.reset()
        return made

    def apply(self, moment: Moment, counted: bool) -> tuple[Tensor, Change] | None:
        """Return the edited raw tensor and the change; None where nothing of the rule is in this pass, or where its
        value refuses the edit. `counted` is False when part of a pass is rerun."""
        if counted:
            self._meet(moment)
        try:
            applied = self._applied(moment)
        except (InvalidEdit, InvalidCondition) as error:
            if counted:
                self._refuse(moment, str(error))
            return None
        if applied is not None and counted:
            self._count("changed")
            assert isinstance(applied[1].size, Tensor)
            self._sizes.append(applied[1].size)
        return applied

    def _applied(self, moment: Moment) -> tuple[Tensor, Change] | None:
        if not self.takes(moment.step):
            return None
        rows, selector = self._rows_at(moment), self.sites[0].selector
        if rows is not None and not rows:
            return None
        part = edits.take(moment.value, rows, selector)
        changed = edit_kinds.compute(part, self.edit, self._arrays_for(part, rows, moment.row_positions()))
        size = edits.relative_size(part, changed)
        made = moment.replace(edits.put(moment.value, changed, rows, selector))
        return made, Change(what=self.what, size=size, rule=self.number)

    def takes(self, step: int) -> bool:
        """True where the rule is for the pass of this step."""
        return self.on is None or (self.on == "prompt") == (step == 0)

    def _rows_at(self, moment: Moment) -> list[int] | None:
        rows = self.rows_in(moment.row_positions())
        if self.guard is None:
            return rows
        return self.guard.holding(moment, self.sites[0], range(moment.rows) if rows is None else rows)

    def rows_in(self, available: range) -> list[int] | None:
        """Return the rows of its positions in a pass over these; None for all of them."""
        if self.positions is None and self.onward is None:
            return None
        named = [available.index(p) for p in self._absolute(available) if p in available]
        if self.onward is None:
            return named
        onward = range(max(0, self.onward - available.start), len(available))
        return [*(row for row in named if row not in onward), *onward]

    def _absolute(self, available: range) -> list[int]:
        return [available.stop + p if p < 0 else p for p in self.positions or ()]

    def _arrays_for(self, part: Tensor, rows: list[int] | None, available: range) -> dict[str, Tensor]:
        """Return the edit's arrays. One with a row for each of the rule's positions gives those of this pass."""
        arrays = self._on_device(part)
        count = len(self.positions or ())
        if rows is None or self.onward is not None or count < 2:
            return arrays
        number = {position: index for index, position in enumerate(self._absolute(available))}
        chosen = [number[available[row]] for row in rows]
        return {
            name: array[chosen] if array.ndim == part.ndim and array.shape[0] == count else array
            for name, array in arrays.items()
        }

    def _on_device(self, part: Tensor) -> dict[str, Tensor]:
        kept = self._arrays
        if kept is None or any((one.device, one.dtype) != (part.device, part.dtype) for one in kept.values()):
            kept = edit_kinds.arrays_of(self.edit, part)
            self._arrays = kept if sum(one.nbytes for one in kept.values()) <= ARRAYS_KEPT else None
        return kept

    # --- its counts --------------------------------------------------------------------------------------------------

    def _meet(self, moment: Moment) -> None:
        number = self.places[moment.tap.site] if len(self.sites) > 1 else 0
        if number <= self._last or self._last < 0:
            self.passes_met += 1
            self._counted.clear()
        self._last, self.met_at = number, moment.positions.start

    def _count(self, what: str) -> None:
        """Count the present pass once as changed, or as refused."""
        if what in self._counted:
            return
        self._counted.add(what)
        if what == "changed":
            self.passes_changed += 1
        else:
            self.passes_refused += 1

    def _refuse(self, moment: Moment, reason: str) -> None:
        self._count("refused")
        self.refused_at = moment.positions.start
        self.trouble = self.trouble or reason

    def announce(self) -> str | None:
        """Return the trouble of this run where it has not been announced, and take it as announced."""
        if self.trouble is None or self.announced:
            return None
        self.announced = True
        return self.trouble

    def enable(self, enabled: bool) -> None:
        self.enabled = enabled

    def mark(self) -> Callable[[], None]:
        """Return a callable that restores the present counts."""
        counts = (self.passes_met, self.passes_changed, self.passes_refused)
        last, counted, sizes = (
            (self._last, self.met_at, self.refused_at, self.trouble),
            set(self._counted),
            len(self._sizes),
        )

        def go_back() -> None:
            self.passes_met, self.passes_changed, self.passes_refused = counts
            self._last, self.met_at, self.refused_at, self.trouble = last
            self._counted = counted
            del self._sizes[sizes:]

        return go_back

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
            site=self.named,
            edit=self.edit,
            positions=self.positions,
            passes_met=self.passes_met,
            passes_changed=self.passes_changed,
            last_relative_size=sizes[-1] if sizes else None,
            mean_relative_size=sum(sizes) / len(sizes) if sizes else None,
            relative_sizes=sizes[-SIZES_TOLD:],
            what=self.what,
            enabled=self.enabled,
            onward=self.onward,
            on=self.on,
            when=self.when,
            note=self.note,
            passes_refused=self.passes_refused,
            trouble=self.trouble,
        )

    def take_up(self, sizes: Iterable[float]) -> None:
        """Restore the sizes that the rule had when it was saved."""
        self._read = list(sizes)

    def reset(self) -> None:
        """Reset the counts and sizes for a new run."""
        self.passes_met = self.passes_changed = self.passes_refused = 0
        self.trouble = self.met_at = self.refused_at = None
        self.announced, self._last = False, -1
        self._counted.clear()
        self._sizes.clear()
        self._read.clear()


def check_rule(edit: Edit, tap: Tap, selector: tuple[int, ...] | None) -> None:
    """Raise InvalidEdit for a rule that could never apply: `selector` names the heads or features that it takes."""
    if not tap.editable:
        raise InvalidEdit(f"{tap.site} can be looked at, not changed: {tap.reason}.")
    if tap.heads is None:
        edit_kinds.check(edit, tap.width if selector is None else len(selector))
    else:
        edit_kinds.check(edit, tap.width, heads=tap.heads if selector is None else len(selector))
