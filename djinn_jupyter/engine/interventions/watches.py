"""Watches: record the value of a site at every pass of every run in host memory, up to a byte cap, without stopping."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from torch import Tensor

from djinn_jupyter.engine.interventions.site_value import Moment
from djinn_jupyter.engine.model.hooks.taps import Tap
from djinn_jupyter.wire.nouns import WatchDescription
from djinn_jupyter.wire.sites import Site


@dataclass(slots=True, kw_only=True)
class Watch:
    """`values` are on the host, one per pass, each with its `positions` and its entry in `runs`, the number of the
    session's run, counted from 1; `run` is the current one. They are kept until the watch is cleared or ended. A pass
    that would exceed `byte_cap` is left out and counted, never half recorded."""

    site: Site
    tap: Tap
    byte_cap: int
    values: list[Tensor] = field(default_factory=list)
    positions: list[tuple[int, ...]] = field(default_factory=list)
    runs: list[int] = field(default_factory=list)
    run: int = 0
    bytes_held: int = 0
    passes_left_out: int = 0

    def observe(self, moment: Moment) -> None:
        value = moment.value if self.site.selector is None else moment.value[:, list(self.site.selector)]
        size = value.numel() * value.element_size()
        if self.bytes_held + size > self.byte_cap:
            self.passes_left_out += 1
            return
        self.values.append(value.detach().to("cpu", copy=True))
        self.positions.append(tuple(moment.row_positions()))
        self.runs.append(self.run)
        self.bytes_held += size

    def mark(self) -> Callable[[], None]:
        """Return a callable that restores the present record."""
        passes, held, left_out = len(self.values), self.bytes_held, self.passes_left_out

        def go_back() -> None:
            del self.values[passes:], self.positions[passes:], self.runs[passes:]
            self.bytes_held, self.passes_left_out = held, left_out

        return go_back

    def describe(self) -> WatchDescription:
        return WatchDescription(
            site=str(self.site),
            passes=len(self.values),
            bytes_held=self.bytes_held,
            byte_cap=self.byte_cap,
            passes_left_out=self.passes_left_out,
        )

    def limit(self, byte_cap: int) -> None:
        """Record no more than so many bytes from now on."""
        self.byte_cap = byte_cap

    def begin_run(self, run: int) -> None:
        """Record the passes that come as those of this run."""
        self.run = run

    def clear(self) -> None:
        """Delete the record and go on watching."""
        self.values.clear()
        self.positions.clear()
        self.runs.clear()
        self.bytes_held = self.passes_left_out = 0
