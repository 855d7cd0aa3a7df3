"""The wrapper of public calls that return a grid: as `waits`, and an interrupt raises with the grid so far."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Final, ParamSpec

from djinn_jupyter.client.interrupts import WorkInterrupted
from djinn_jupyter.client.waits import waits
from djinn_jupyter.methods.sweep.api.grid import Grid

P = ParamSpec("P")
KEPT: Final = (
    "was interrupted, and the engine told to end it. The grid so far is `kept` of this error; the next cell has it as "
    "sys.last_value.kept."
)


def waits_for_grid(work: str) -> Callable[[Callable[P, Grid]], Callable[P, Grid]]:
    """Have a function wait so; `work` begins a sentence. WorkInterrupted for an interrupt, with the grid so far."""

    def decorate(call: Callable[P, Grid]) -> Callable[P, Grid]:
        waited_for = waits(work)(call)

        @functools.wraps(call)
        def whole_grid(*args: P.args, **kwargs: P.kwargs) -> Grid:
            grid = waited_for(*args, **kwargs)
            if grid.interrupted:
                raise WorkInterrupted(f"{work} {KEPT}", grid)
            return grid

        return whole_grid

    return decorate
