"""A copy of a site's value at a stop: numbers, a table, and the same read again."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any

from djinn_jupyter.client.arrays import to_numpy
from djinn_jupyter.client.frames import in_columns, numbered
from djinn_jupyter.client.looks import StopLook
from djinn_jupyter.wire.replies import Inspected

if TYPE_CHECKING:
    import numpy as np


class Snapshot(StopLook):
    """A copy of a site's value: `value` with the axes that `axes` spells, positions first. It cannot be resumed."""

    ending = ".snapshot.djinn"
    named = "file of a snapshot"
    reply: Inspected

    def __post_init__(self) -> None:
        super().__post_init__()
        read = self.reply.snapshot
        self.site, self.axes, self.dtype = read.site, read.axes, read.dtype
        self.positions, self.exactness = read.positions, read.exactness

    @cached_property
    def values(self) -> np.ndarray[Any, Any]:  # type: ignore[override]  # read when it is asked for
        """The same as `value`, [positions, ...]."""
        return to_numpy(self.reply.snapshot.value)

    @property
    def value(self) -> np.ndarray[Any, Any]:
        """The values, [positions, ...], in the model's dtype."""
        return self.values

    @property
    def shape(self) -> tuple[int, ...]:
        """The size of each axis."""
        return self.reply.snapshot.value.shape

    def check(self) -> None:
        """Raise ValueError where the value is not that of its positions."""
        read = self.reply.snapshot
        if read.value.dtype != read.dtype or read.value.shape[:1] != (len(read.positions),):
            raise ValueError("its value is not that of its positions")

    def place_of(self, index: tuple[int, ...]) -> dict[str, Any]:
        """Return the position of the number at this index, and which one of it."""
        row, *rest = index
        number = 0
        for size, at in zip(self.shape[1:], rest, strict=True):
            number = number * size + at
        return {"position": self.positions[row], "value": number}

    def columns(self) -> dict[str, list[Any]]:
        """Return the value as lists by column, with a row for each position: the position, and `value 0`, ... (heads
        and features one after the other)."""
        rows = self.values.reshape(len(self.positions), -1).tolist()
        return in_columns(("position",), [(at,) for at in self.positions]) | numbered(rows)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        return self.value if dtype is None else self.value.astype(dtype)

    def told(self) -> dict[str, list[Any]]:
        """Return no table: a value may have millions of numbers."""
        return {}

    def __repr__(self) -> str:
        shape = " x ".join(str(n) for n in self.shape)
        return f"Snapshot of {self.site}: {shape} ({self.axes}), {self.dtype}, {self.exactness}"
