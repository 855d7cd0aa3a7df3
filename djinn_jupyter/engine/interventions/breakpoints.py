"""Breakpoints: a site, an optional condition, a hit count. Decides whether to stop at a moment; stops nothing."""

from __future__ import annotations

from dataclasses import dataclass

from djinn_jupyter.engine.interventions.conditions import Condition
from djinn_jupyter.engine.interventions.site_scope import Texts, TokenIds, rows_meeting
from djinn_jupyter.engine.interventions.site_value import SiteValue
from djinn_jupyter.engine.model.hooks.taps import Tap
from djinn_jupyter.wire.nouns import BreakpointDescription
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
