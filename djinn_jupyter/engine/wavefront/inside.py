"""Values that lines have at a tap inside the layer at which they join, put in place while that layer runs packed rows.

Packed rows lie as those of one line do, so a tap's own layout reads and writes them. Whether a tap's module gets the
rows as they were packed is not known here: the caller has to test it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

from torch import Tensor

from djinn_jupyter.engine.model.hooks.layout import PositionLayout
from djinn_jupyter.engine.model.hooks.taps import Tap, catch


class NotPacked(RuntimeError):
    """A layer does something with packed rows that this folder does not know."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Inside:
    """The values of a line at `tap`, one for each of its rows."""

    tap: Tap
    value: Tensor

    def last(self, rows: int) -> Inside:
        return Inside(tap=self.tap, value=self.value[-rows:])


def is_served(tap: Tap) -> bool:
    """Return whether packed rows may have values of their own at a tap: at what a module gets or returns."""
    return tap.kind in ("module_input", "module_output") and isinstance(tap.layout, PositionLayout)


def in_place(values: Iterable[tuple[int, Inside]], rows: int) -> AbstractContextManager[None]:
    """Put values in place inside this block, each from its first row on, where a call of `rows` packed rows meets
    their taps."""
    puts: defaultdict[Tap, list[tuple[int, Tensor]]] = defaultdict(list)
    for first, one in values:
        puts[one.tap].append((first, one.value))

    def put(tap: Tap, raw: Tensor) -> Tensor:
        value = tap.read(raw).clone()
        if value.shape[0] != rows:
            raise NotPacked(f"{tap.site} has {value.shape[0]} rows of {rows}")
        for first, own in puts[tap]:
            value[first : first + own.shape[0]] = own
        return tap.write(raw, value)

    return catch(puts, put) if puts else nullcontext()
