"""Breakpoints, watches and steering rules: what stops a pass, records it, or edits every one.

The field's worst failure is an intervention that silently did nothing, so a rule counts the passes it met, changed and
could not change, and records the relative size |after - before| / |before| of each change. The sizes stay on the device
until they are read. Where a value refuses the edit the pass goes on without it, and the rule keeps the reason."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Final

import torch
from torch import Tensor

from djinn_jupyter.engine.model.hooks.taps import Tap
from djinn_jupyter.engine.passes import edits
from djinn_jupyter.engine.passes.conditions import Condition
from djinn_jupyter.engine.passes.edits import Change, ChangeSizes
from djinn_jupyter.engine.passes.site_value import Guard, SiteValue, Texts, TokenIds, rows_meeting
from djinn_jupyter.engine.system.arrays import to_tensor
from djinn_jupyter.errors import InvalidCondition, InvalidEdit, UsageError
from djinn_jupyter.wire.arrays import Array
from djinn_jupyter.wire.edits import Edit, with_coefficient
from djinn_jupyter.wire.looks import spell_watch
from djinn_jupyter.wire.nouns import BreakpointDescription, PassesMeant, RuleDescription, WatchDescription
from djinn_jupyter.wire.readings import limits_of
from djinn_jupyter.wire.sites import Site

SIZES_TOLD: Final = 256
UNREAD_KEPT: Final = 4096  # sizes that stay on the device until they are read, of 512 bytes each on a GPU
FLOAT_BYTES: Final = 32  # of a number in a list
ARRAYS_KEPT: Final = 1 << 20  # bytes of an edit's arrays that stay on the device; larger ones are copied at each pass


@dataclass(slots=True, kw_only=True)
class Rule:
    """`taps` are those of `sites`, in order of layers; `named` is their spelling for a person. `positions` are
    absolute, negative ones count from the end of each pass, and all from `onward` on belong to them; without either it
    is the whole pass. `on` selects passes. `words` are those of an edit that was made from another one. A rule that is
    not `enabled` applies to no pass. `met_at` and `refused_at` are the first positions of the last pass that met it and
    of the last whose value refused it, for the reason `trouble`; `announced` where that was published."""

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
    _last: int = -1  # the last tap, by number; the next pass reaches one before it, or the same
    _changed_in: int = 0  # the last pass that was counted as changed, by its number in `passes_met`
    _refused_in: int = 0
    _unread: list[tuple[int, ChangeSizes]] = field(default_factory=list)  # by passes; still on the device
    _read: list[float] = field(default_factory=list)
    _arrays: dict[str, Tensor] | None = None
    _made_for: tuple[torch.device, torch.dtype, int] | None = None
    what: str = field(init=False)  # the rule as a person would say it
    places: dict[Site, int] = field(init=False)  # the numbers of the taps, by their sites without selectors

    def __post_init__(self) -> None:
        self.what = ", ".join((f"{self.words or edits.spell(self.edit)} at {self.named}", *limits_of(self)))
        self.places = {site.whole(): number for number, site in enumerate(self.sites)}

    @property
    def when(self) -> str | None:
        return None if self.guard is None else self.guard.condition.text

    def says(self, other: Rule) -> bool:
        """True where the other rule would do the same."""
        mine, others = (
            (one.named, one.edit, one.positions, one.onward, one.on, one.when, one.words) for one in (self, other)
        )
        return mine == others

    def copy(self) -> Rule:
        """Return the same rule with counts of its own."""
        made = replace(self, _unread=[], _read=[])
        made.reset()
        return made

    def with_coefficient(self, coef: float) -> Rule:
        """Return the same rule, whose edit has one, with this factor or coefficient, turned on and with counts of its
        own. Raises InvalidEdit for a number that no rule may have."""
        edit = with_coefficient(self.edit, coef)
        check_rule(edit, self.taps[0], self.sites[0].selector)
        return replace(self, edit=edit, enabled=True, _arrays=None).copy()

    def apply(self, site_value: SiteValue, counted: bool) -> tuple[Tensor, Change] | None:
        """Return the edited value, a new tensor, and the change; None where the rule has nothing in this pass, or where
        its value refuses the edit. `counted` is False when part of a pass is rerun."""
        if counted:
            self._meet(site_value)
        try:
            applied = self._applied(site_value)
        except (InvalidEdit, InvalidCondition) as error:
            if counted:
                self._refuse(site_value, str(error))
            return None
        if applied is None:
            return None
        value, sizes = applied
        if counted:
            if len(self._unread) >= UNREAD_KEPT:
                self.sizes()
            self._unread.append((self.passes_met, sizes))
        return value, Change(what=self.what, size=sizes, rule=self.number)

    def _applied(self, site_value: SiteValue) -> tuple[Tensor, ChangeSizes] | None:
        if not self.takes(site_value.step):
            return None
        rows, selector = self._rows_at(site_value), self.sites[0].selector
        if rows is None and selector is None:
            part = site_value.value
            changed = edits.compute(part, self.edit, self._on_device(part))
            return changed, edits.sizes(part, changed)
        if rows is not None and not rows:
            return None
        part = edits.take(site_value.value, rows, selector)
        changed = edits.compute(part, self.edit, self._arrays_for(part, rows, site_value))
        return edits.put(site_value.value, changed, rows, selector), edits.sizes(part, changed)

    def takes(self, step: int) -> bool:
        """True where the rule applies to the pass of this step."""
        return self.on is None or (self.on == "prompt") == (step == 0)

    def _rows_at(self, site_value: SiteValue) -> list[int] | None:
        rows = self.rows_in(site_value.row_positions()) if self._chooses_rows else None
        if self.guard is None:
            return rows
        return self.guard.holding(site_value, self.sites[0], range(site_value.rows) if rows is None else rows)

    @property
    def _chooses_rows(self) -> bool:
        return self.positions is not None or self.onward is not None

    def rows_in(self, available: range) -> list[int] | None:
        """Return the rows of its positions in a pass over these; None for all of them."""
        if not self._chooses_rows:
            return None
        named = [available.index(p) for p in self._absolute(available) if p in available]
        if self.onward is None:
            return named
        onward = range(max(0, self.onward - available.start), len(available))
        return [*(row for row in named if row not in onward), *onward]

    def _absolute(self, available: range) -> list[int]:
        return [available.stop + p if p < 0 else p for p in self.positions or ()]

    def _arrays_for(self, part: Tensor, rows: list[int] | None, site_value: SiteValue) -> dict[str, Tensor]:
        """Return the edit's arrays. One with a row for each of the rule's positions gives those of this pass."""
        arrays = self._on_device(part)
        count = len(self.positions or ())
        if rows is None or self.onward is not None or count < 2:
            return arrays
        available = site_value.row_positions()
        number = {position: index for index, position in enumerate(self._absolute(available))}
        chosen = [number[available[row]] for row in rows]
        return {
            name: array[chosen] if array.ndim == part.ndim and array.shape[0] == count else array
            for name, array in arrays.items()
        }

    def _on_device(self, part: Tensor) -> dict[str, Tensor]:
        kept, made_for = self._arrays, (part.device, part.dtype, part.shape[-1])
        if kept is None or self._made_for != made_for:
            kept, self._made_for = edits.arrays_of(self.edit, part), made_for
            self._arrays = kept if sum(one.nbytes for one in kept.values()) <= ARRAYS_KEPT else None
        return kept

    @property
    def copies(self) -> Iterable[Tensor]:
        """The tensors on the device made from the edit's arrays."""
        return () if self._arrays is None else self._arrays.values()

    @property
    def copies_to_come(self) -> int:
        """The bytes that the next pass leaves on the device for its arrays, in float32; none for large ones."""
        if self._arrays is not None or not self.enabled:
            return 0
        size = edits.array_bytes(self.edit, 4)
        return size if size <= ARRAYS_KEPT else 0

    @property
    def bytes_recorded(self) -> int:
        """The bytes on the host of the sizes of its changes."""
        return FLOAT_BYTES * len(self._read)

    # --- its counts --------------------------------------------------------------------------------------------------

    def _meet(self, site_value: SiteValue) -> None:
        number = self.places[site_value.tap.site] if len(self.sites) > 1 else 0
        if number <= self._last or self._last < 0:
            self.passes_met += 1
        self._last, self.met_at = number, site_value.positions.start

    def _refuse(self, site_value: SiteValue, reason: str) -> None:
        if self._refused_in != self.passes_met:
            self.passes_refused += 1
        self._refused_in = self.passes_met
        self.refused_at = site_value.positions.start
        self.trouble = self.trouble or reason

    def announce(self) -> str | None:
        """Return the trouble of this run if not announced yet, and mark it as announced."""
        if self.trouble is None or self.announced:
            return None
        self.announced = True
        return self.trouble

    def enable(self, enabled: bool) -> None:
        self.enabled = enabled

    def mark(self) -> Callable[[], None]:
        """Return a callable that restores the present counts."""
        counts = (self.passes_met, self.passes_changed, self.passes_refused)
        last = (self._last, self._changed_in, self._refused_in, self.met_at, self.refused_at, self.trouble)
        unread, length, read = self._unread, len(self._unread), len(self._read)

        def go_back() -> None:
            self.passes_met, self.passes_changed, self.passes_refused = counts
            self._last, self._changed_in, self._refused_in, self.met_at, self.refused_at, self.trouble = last
            self._unread = unread  # `sizes` may have read some of them since
            del self._unread[length:], self._read[read:]

        return go_back

    def sizes(self) -> tuple[float, ...]:
        """Return the relative size of every change so far, and count the passes that have one; waits for those still on
        the device. An edit that changed nothing was no change."""
        unread, self._unread = self._unread, []
        sizes = edits.all_of([one for _, one in unread])
        for (number, _), absolute, relative in zip(unread, *sizes, strict=True):
            if absolute == 0:
                continue
            self._read.append(relative)
            if self._changed_in != number:
                self.passes_changed += 1
            self._changed_in = number
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

    def restore_sizes(self, sizes: Iterable[float]) -> None:
        """Restore the sizes that the rule had when it was saved."""
        self._read = list(sizes)

    def reset(self) -> None:
        """Reset the counts and sizes for a new run."""
        self.passes_met = self.passes_changed = self.passes_refused = 0
        self.trouble = self.met_at = self.refused_at = None
        self.announced, self._last = False, -1
        self._changed_in = self._refused_in = 0
        self._unread = []
        self._read.clear()


def check_rule(edit: Edit, tap: Tap, selector: tuple[int, ...] | None) -> None:
    """Raise InvalidEdit for a rule that could never apply: `selector` names the heads or features that it takes."""
    if not tap.editable:
        raise InvalidEdit(f"{tap.site} can be looked at, not changed: {tap.reason}.")
    if tap.heads is None:
        edits.check(edit, tap.width if selector is None else len(selector))
    else:
        edits.check(edit, tap.width, heads=tap.heads if selector is None else len(selector))


@dataclass(slots=True, kw_only=True)
class Breakpoint:
    """`hits` counts the passes in which the condition was true; `note` names ambiguous parts of the condition."""

    number: int
    site: Site
    tap: Tap
    condition: Condition | None
    once: bool
    text_of: Texts
    id_of: TokenIds
    enabled: bool = True
    hits: int = 0
    note: str | None = None

    def meets(self, site_value: SiteValue) -> int | None:
        """Return the absolute position to report where the pass should stop now, else None. It is the first position
        where the condition is true; without a condition, or with one that is the same for all positions, the pass's
        last."""
        condition, rows = self.condition, range(site_value.rows)
        if condition is None:
            return site_value.positions[-1]
        met = next(rows_meeting(condition, site_value, self.site, self.text_of, self.id_of, rows), None)
        if met is None or condition.same_for_all_positions:
            return None if met is None else site_value.positions[-1]
        return site_value.row_positions()[met]

    def arm(self, *, enabled: bool, once: bool) -> None:
        self.enabled, self.once = enabled, once

    def count_hit(self) -> None:
        self.hits += 1

    def describe(self) -> BreakpointDescription:
        return BreakpointDescription(
            number=self.number,
            site=str(self.site),
            when=None if self.condition is None else self.condition.text,
            once=self.once,
            enabled=self.enabled,
            hits=self.hits,
            note=self.note,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class FedPasses:
    """Positions [start, end) of a token sequence that were fed `each` at a time under these rules."""

    start: int
    end: int
    each: int
    rules: tuple[Rule, ...] = ()

    def has_pass(self, positions: tuple[int, ...]) -> bool:
        """True where these are the last positions of one of the passes: a site may have no others."""
        last = positions[-1] + 1
        begins = self.start + (last - 1 - self.start) // self.each * self.each
        return self.start < last <= self.end and last == min(begins + self.each, self.end) and positions[0] >= begins


@dataclass(frozen=True, slots=True, kw_only=True)
class FedLine:
    """The fed `tokens` of a sequence, in these passes. `unmade` is the reason why feeding them again gives other
    values; it is empty where it gives the same."""

    tokens: tuple[int, ...]
    passes: tuple[FedPasses, ...]
    unmade: str = ""

    def has_pass(self, positions: tuple[int, ...]) -> bool:
        """True where a pass of the sequence had these positions, or these as its last."""
        return any(one.has_pass(positions) for one in self.passes)


FOR_EXAMPLE: Final = "resid_post.4"
ROUNDING: Final = 2.0**-23  # by which the norm of a unit vector of fp32 may differ from 1


@dataclass(slots=True, kw_only=True)
class Watch:
    """Records the value of a site at every pass of every run, up to a byte cap, without stopping.

    `values` are on the host, one per pass, each with its `positions` and its entry in `runs`, the number of the
    session's run, counted from 1; `run` is the current one. They are kept until the watch is cleared or ended. A pass
    that would exceed `byte_cap` is left out and counted, never half recorded.

    `lines` are those of earlier runs with recorded passes, in this process; `repeated` are the runs in which a pass
    began at a position that the run had `reached` before, as behind a step back.

    With a `direction` (its name) and its `unit` vector [D], fp32, a value is the component of the site's along it, fp32
    [T]."""

    site: Site
    tap: Tap
    byte_cap: int
    direction: str | None = None
    unit: Tensor | None = None
    values: list[Tensor] = field(default_factory=list)
    positions: list[tuple[int, ...]] = field(default_factory=list)
    runs: list[int] = field(default_factory=list)
    run: int = 0
    bytes_held: int = 0
    passes_left_out: int = 0
    lines: dict[int, FedLine] = field(default_factory=dict)
    repeated: set[int] = field(default_factory=set)
    reached: dict[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for run, positions in zip(self.runs, self.positions, strict=True):
            self._reach(run, positions)

    @property
    def key(self) -> str:
        """The watch in words: unique within a session."""
        return spell_watch(str(self.site), self.direction)

    @property
    def axes(self) -> str:
        return self.tap.axes if self.unit is None else "T"

    def observe(self, site_value: SiteValue) -> None:
        value = site_value.units(self.site.selector)
        if self.unit is not None:
            value = along(value, self.unit)
        size = value.numel() * value.element_size()
        positions = tuple(site_value.row_positions())
        self._reach(self.run, positions)
        if self.bytes_held + size > self.byte_cap:
            self.passes_left_out += 1
            return
        self.values.append(value.detach().to("cpu", copy=True))
        self.positions.append(positions)
        self.runs.append(self.run)
        self.bytes_held += size

    def _reach(self, run: int, positions: tuple[int, ...]) -> None:
        before = self.reached.get(run, 0)
        if positions[0] < before:
            self.repeated.add(run)
        self.reached[run] = max(before, positions[-1] + 1)

    def mark(self) -> Callable[[], None]:
        """Return a callable that restores the present record."""
        passes, held, left_out = len(self.values), self.bytes_held, self.passes_left_out
        run, reached, repeated = self.run, self.reached.get(self.run, 0), set(self.repeated)

        def go_back() -> None:
            del self.values[passes:], self.positions[passes:], self.runs[passes:]
            self.bytes_held, self.passes_left_out = held, left_out
            self.reached[run], self.repeated = reached, repeated

        return go_back

    def describe(self) -> WatchDescription:
        return WatchDescription(
            site=str(self.site),
            passes=len(self.values),
            bytes_held=self.bytes_held,
            byte_cap=self.byte_cap,
            passes_left_out=self.passes_left_out,
            direction=self.direction,
        )

    def limit(self, byte_cap: int) -> None:
        """Record no more than so many bytes from now on."""
        self.byte_cap = byte_cap

    def begin_run(self, run: int, before: FedLine) -> None:
        """Record later passes as those of this run, and keep the previous run's tokens if it has passes."""
        if self.run in self.runs:
            self.lines[self.run] = before
        self.run = run

    def clear(self) -> None:
        """Delete the record and continue watching."""
        self.values.clear()
        self.positions.clear()
        self.runs.clear()
        self.lines.clear()
        self.repeated.clear()
        self.reached.clear()
        self.bytes_held = self.passes_left_out = 0


def unit_of(vector: Array, site: Site, tap: Tap) -> Tensor:
    """Return a direction at this site as a unit vector [D], fp32; a unit vector keeps its bits. Raises UsageError."""
    heads = 1 if tap.heads is None else len(site.selector or range(tap.heads))
    if tap.width is None or (tap.heads is None and site.selector is not None):
        raise UsageError(f"A direction is of all features of a site, such as {FOR_EXAMPLE}; {site} has none.")
    if heads > 1:
        raise UsageError(f"{site} has {heads} heads: name the one of the direction, such as {site.whole()}[0].")
    if vector.shape != (tap.width,):
        raise UsageError(f"The direction has shape {list(vector.shape)}; at {site} it has to be [{tap.width}].")
    direction = to_tensor(vector).to(torch.float64)
    norm = direction.norm()
    if not 0 < norm < torch.inf:
        raise UsageError(f"The direction has the norm {float(norm):g}: it has to be finite and above 0.")
    unit: Tensor = direction if abs(norm - 1) <= ROUNDING else direction / norm
    return unit.to(torch.float32)


def along(value: Tensor, unit: Tensor) -> Tensor:
    """Return the component of each row of [T, D] or [T, 1, D] along a unit vector [D]: [T]."""
    component: Tensor = (value.to(torch.float32) * unit.to(value.device)).sum(-1)
    return component.reshape(len(value))
