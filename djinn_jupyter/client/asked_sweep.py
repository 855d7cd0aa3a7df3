"""The part of a sweep that all its pairs share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import msgspec

from djinn_jupyter.client.grid import Grid
from djinn_jupyter.wire import requests as ask

OnProgress = Callable[[Grid, int, int], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class AskedSweep:
    """A `request` without its lines, whether metrics are an axis, the grid to go on from (`so_far`), and the `adapter`
    of lines that are no session's."""

    request: ask.Sweep
    several: bool
    on_progress: OnProgress | None
    so_far: Grid | None
    adapter: str | None = None

    def with_seed(self, seed: int) -> AskedSweep:
        return replace(self, request=msgspec.structs.replace(self.request, seed=seed))
