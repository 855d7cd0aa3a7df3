"""The one wrapper of public calls that take longer than a moment: a line says how far they are, and an interrupt raises
and keeps what there is."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Final, ParamSpec, TypeVar

from djinn_jupyter.client.interrupts import interruptible

P = ParamSpec("P")
Result = TypeVar("Result")
SHOWN_BY_CALLER: Final = ("on_progress", "progress", "each_second")


def waits(work: str) -> Callable[[Callable[P, Result]], Callable[P, Result]]:
    """Have a function wait so; `work` begins a sentence. WorkInterrupted for an interrupt."""

    def decorate(call: Callable[P, Result]) -> Callable[P, Result]:
        @functools.wraps(call)
        def waiting_call(*args: P.args, **kwargs: P.kwargs) -> Result:
            quiet = any(kwargs.get(name) is not None for name in SHOWN_BY_CALLER)
            with interruptible(work, quiet=quiet):
                return call(*args, **kwargs)

        return waiting_call

    return decorate
