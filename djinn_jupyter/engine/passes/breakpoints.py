"""Breakpoints: a site, an optional condition, a hit count. Decides whether to stop at a moment; stops nothing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

import torch
from torch import Tensor

from djinn_jupyter.engine.model.hooks.taps import Tap
from djinn_jupyter.engine.passes.conditions import Condition
from djinn_jupyter.engine.passes.site_value import SiteValue, Texts, TokenIds, rows_meeting
from djinn_jupyter.engine.passes.steering import Rule
from djinn_jupyter.engine.system.arrays import to_tensor
from djinn_jupyter.errors import UsageError
from djinn_jupyter.wire.arrays import Array
from djinn_jupyter.wire.looks import spell_watch
from djinn_jupyter.wire.nouns import BreakpointDescription, WatchDescription
from djinn_jupyter.wire.sites import Site


@dataclass(slots=True, kw_only=True)
class Breakpoint:
    """`hits` counts the passes in which the condition held; `note` names the parts of the condition that may have
    another meaning."""

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
        """Return the absolute position to report where the pass should stop at this moment, else None. It is the first
        position where the condition holds; without a condition, or with one that is the same for all positions, the
        pass's last."""
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


# The line of a run as it was fed, pass by pass: from it the same values can be computed again.


@dataclass(frozen=True, slots=True, kw_only=True)
class FedPasses:
    """Positions [start, end) of a line that were fed `each` at a time under these rules."""

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
    """The `tokens` of a line that were fed, in these passes. `unmade` says why feeding them again makes other values;
    it is empty where it makes the same."""

    tokens: tuple[int, ...]
    passes: tuple[FedPasses, ...]
    unmade: str = ""

    def has_pass(self, positions: tuple[int, ...]) -> bool:
        """True where a pass of the line had these positions, or these as its last."""
        return any(one.has_pass(positions) for one in self.passes)


# Watches: record the value of a site at every pass of every run in host memory, up to a byte cap, without stopping.

FOR_EXAMPLE: Final = "resid_post.4"
ROUNDING: Final = 2.0**-23  # by which the norm of a unit vector of fp32 may differ from 1


@dataclass(slots=True, kw_only=True)
class Watch:
    """`values` are on the host, one per pass, each with its `positions` and its entry in `runs`, the number of the
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
        """The watch as a person would say it: no two of a session have the same."""
        return spell_watch(str(self.site), self.direction)

    @property
    def axes(self) -> str:
        return self.tap.axes if self.unit is None else "T"

    def observe(self, site_value: SiteValue) -> None:
        value = site_value.units(self.site.selector)
        if self.unit is not None:
            value = _along(value, self.unit)
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
        """Record the passes that come as those of this run, and keep the line of the run before where it has some."""
        if self.run in self.runs:
            self.lines[self.run] = before
        self.run = run

    def clear(self) -> None:
        """Delete the record and go on watching."""
        self.values.clear()
        self.positions.clear()
        self.runs.clear()
        self.lines.clear()
        self.repeated.clear()
        self.reached.clear()
        self.bytes_held = self.passes_left_out = 0


def unit_of(vector: Array, site: Site, tap: Tap) -> Tensor:
    """Return a direction at this site as a unit vector [D], fp32; one that is a unit vector already is left as it is,
    bit for bit. Raises UsageError."""
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


def _along(value: Tensor, unit: Tensor) -> Tensor:
    """Return the component of each row of [T, D] or [T, 1, D] along a unit vector [D]: [T]."""
    component: Tensor = (value.to(torch.float32) * unit.to(value.device)).sum(-1)
    return component.reshape(len(value))
