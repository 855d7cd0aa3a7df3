"""The one wrapper of public calls that take longer than a moment: a line says how far they are, and an interrupt raises
and keeps what there is."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Final, ParamSpec, TypeVar

from djinn_jupyter.client.interrupts import WorkInterrupted, interruptible
from djinn_jupyter.methods.sweep.api.grid import Grid

P = ParamSpec("P")
Result = TypeVar("Result")
SHOWN_BY_CALLER: Final = ("on_progress", "progress", "each_second")
KEPT: Final = (
    "was interrupted, and the engine told to end it. The grid so far is `kept` of this error; the next cell has it as "
    "sys.last_value.kept."
)


def waits(work: str) -> Callable[[Callable[P, Result]], Callable[P, Result]]:
    """Have a function wait so; `work` begins a sentence. WorkInterrupted for an interrupt, with the grid so far."""

    def decorate(call: Callable[P, Result]) -> Callable[P, Result]:
        @functools.wraps(call)
        def waiting_call(*args: P.args, **kwargs: P.kwargs) -> Result:
            quiet = any(kwargs.get(name) is not None for name in SHOWN_BY_CALLER)
            with interruptible(work, quiet=quiet):
                found = call(*args, **kwargs)
            if isinstance(found, Grid) and found.interrupted:
                raise WorkInterrupted(f"{work} {KEPT}", found)
            return found

        return waiting_call

    return decorate
