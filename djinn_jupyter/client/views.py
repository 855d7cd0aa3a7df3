"""Readings of a stopped pass for display: values as numpy arrays, `repr` as text tables, no ids or addresses.

Each keeps the wire's own value as `reply`, for the widgets.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any

from djinn_jupyter.client.arrays import to_numpy
from djinn_jupyter.client.frames import Tabular, in_columns
from djinn_jupyter.wire.nouns import TopToken
from djinn_jupyter.wire.replies import Inspected, WatchRead
from djinn_jupyter.wire.watches import spell_watch

if TYPE_CHECKING:
    import numpy as np


class Snapshot:
    """A copy of a site's value: `value` with the axes that `axes` spells, positions first. It cannot be resumed."""

    def __init__(self, reply: Inspected) -> None:
        self.reply = reply
        read = reply.snapshot
        self.site, self.axes, self.dtype = read.site, read.axes, read.dtype
        self.positions, self.exactness = read.positions, read.exactness

    @cached_property
    def value(self) -> np.ndarray[Any, Any]:
        """The values, [positions, ...], in the model's dtype."""
        return to_numpy(self.reply.snapshot.value)

    @property
    def shape(self) -> tuple[int, ...]:
        """The size of each axis."""
        return self.reply.snapshot.value.shape

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        return self.value if dtype is None else self.value.astype(dtype)

    def __repr__(self) -> str:
        shape = " x ".join(str(n) for n in self.shape)
        return f"Snapshot of {self.site}: {shape} ({self.axes}), {self.dtype}, {self.exactness}"


class Watched(Tabular):
    """All recorded passes of a site: `values[i]` covers the absolute `positions[i]` of run `runs[i]`; runs are counted
    from the session's first prompt, run 1. With a `direction` each value has one component a position."""

    def __init__(self, reply: WatchRead) -> None:
        self.reply = reply
        self.site, self.axes, self.positions = reply.watch.site, reply.axes, reply.positions
        self.direction = reply.watch.direction
        self.runs = reply.runs
        self.passes_left_out = reply.watch.passes_left_out

    @cached_property
    def values(self) -> tuple[np.ndarray[Any, Any], ...]:
        """The value of each pass, [positions, ...], in the model's dtype; with a direction [positions]."""
        return tuple(to_numpy(array) for array in self.reply.values)

    def columns(self) -> dict[str, list[Any]]:
        """Return the passes as lists by column, with a row for each position of each: the number of the pass, its run,
        the position, and its `value`; of several features (heads and features one after the other) `value 0`, ...; None
        where another pass has more."""
        places = [(n, self.runs[n], at) for n, positions in enumerate(self.positions) for at in positions]
        rows = [row.reshape(-1).tolist() for value in self.values for row in value]
        width = max(map(len, rows), default=0)
        names = ["value"] if self.direction is not None else [f"value {number}" for number in range(width)]
        wide = [[*row, *[None] * (width - len(row))] for row in rows]
        return in_columns(("pass", "run", "position"), places) | in_columns(names, wide)

    def __len__(self) -> int:
        return len(self.reply.values)

    def __repr__(self) -> str:
        left_out = f", {self.passes_left_out} left out by the byte cap" if self.passes_left_out else ""
        runs = len(set(self.runs))
        watched = spell_watch(self.site, self.direction)
        return f"Watched {watched}: {len(self)} passes of {runs} runs ({self.axes}){left_out}"


def spell_top(top: tuple[TopToken, ...]) -> str:
    return "  ".join(f"{entry.text!r} {entry.probability:.3f}" for entry in top)
