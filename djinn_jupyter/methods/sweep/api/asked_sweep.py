"""The part of a sweep that all its pairs share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from djinn_jupyter.errors import UsageError
from djinn_jupyter.methods.sweep.api.grid import Grid
from djinn_jupyter.methods.sweep.api.pair_metrics import GivenMetric, PerPair
from djinn_jupyter.methods.sweep.request import Sweep

OnProgress = Callable[[Grid, int, int], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class AskedSweep:
    """A `request` without its lines, whether metrics are an axis, the grid to go on from (`so_far`), the `adapter` of
    lines that are no session's, and the metrics that belong to one pair each (`own`)."""

    request: Sweep
    several: bool
    on_progress: OnProgress | None
    so_far: Grid | None
    adapter: str | None = None
    own: PerPair | None = None

    @classmethod
    def of(cls, request: Sweep, metric: GivenMetric, **rest: Any) -> AskedSweep:
        """Return the sweep of a request whose metrics were given so."""
        own = metric if isinstance(metric, PerPair) else None
        return cls(request=request, several=own is None and not isinstance(metric, str), own=own, **rest)

    def require_pairs(self, count: int | None, engines: int = 1) -> None:
        """Raise UsageError where so many pairs, or one line (None), do not have the metrics that belong to pairs, or
        are not for so many engines."""
        if count is None and engines > 1:
            raise UsageError("beside spreads pairs over engines, and here is one line: leave it out, or give pairs.")
        if self.own is not None and count is None:
            raise UsageError("dj.per_pair has a metric for each pair: give lists of lines, or pairs; here is one line.")
        if self.own is not None and count is not None:
            self.own.require(count)

    def of_pair(self, number: int) -> AskedSweep:
        """Return the sweep of one pair, with its own metric where it has one."""
        metrics = self.request.metrics if self.own is None else (self.own.metrics[number],)
        return replace(self, request=msgspec.structs.replace(self.request, pair=number, metrics=metrics))

    def with_seed(self, seed: int) -> AskedSweep:
        return replace(self, request=msgspec.structs.replace(self.request, seed=seed))
