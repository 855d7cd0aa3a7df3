"""A snapshot as numpy values, with the tokens of its positions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from djinn_jupyter.widgets.spelling import at_positions, shape
from djinn_jupyter.widgets.stop import site_of
from djinn_jupyter.wire.pooling import Pooled


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """A snapshot with its values as numpy, positions first, and the tokens at every absolute position of the line.
    `pooled` is all of it for the picture, where `values` are those of the last `positions` alone."""

    site: str
    values: NDArray[np.generic]
    axes: str
    positions: tuple[int, ...]
    dtype: str
    exactness: str
    texts: Mapping[int, str]
    session: str | None = None
    pooled: Pooled | None = None

    @property
    def is_pattern(self) -> bool:
        return site_of(self.site).point == "pattern" and self.values.ndim == 3

    @property
    def has_heads(self) -> bool:
        return self.axes == "T H D" and self.values.ndim == 3

    @property
    def heads(self) -> list[int]:
        """The numbers of the heads in `values`: the selected ones, or all."""
        selector = site_of(self.site).selector
        return list(selector) if selector is not None else list(range(self.values.shape[1]))

    @property
    def line(self) -> str:
        whole = self.values.shape if self.pooled is None else self.pooled.shape
        value = f"{self.dtype} {shape(whole)} ({self.axes})"
        return f"{value}, {at_positions(self.all_positions)}, {self.exactness}"

    @property
    def all_positions(self) -> tuple[int, ...]:
        """The positions of the picture."""
        return self.positions if self.pooled is None else self.pooled.positions

    @property
    def key_positions(self) -> range:
        """The positions of the keys. They end at the last position of the pass; with windowed attention the first ones
        are missing."""
        return range(self.positions[-1] + 1 - self.values.shape[-1], self.positions[-1] + 1)
