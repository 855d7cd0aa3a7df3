"""A snapshot as numpy values, with the tokens of its positions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from djinn_jupyter.widgets.attention import Attention
from djinn_jupyter.widgets.spelling import at_positions, shape
from djinn_jupyter.widgets.stop import site_of
from djinn_jupyter.wire.nouns import StopIdentity
from djinn_jupyter.wire.pooling import Pooled


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """A snapshot with its values as numpy, positions first, and the tokens at every absolute position of the line.
    `pooled` is all of it for the pictures, where `values` are those of the last `positions` alone: none of a pattern.
    `end` is one past the last position of the pass, where that is not among `positions`; `stop` is what a pooled value
    was read from."""

    site: str
    values: NDArray[np.generic]
    axes: str
    positions: tuple[int, ...]
    dtype: str
    exactness: str
    texts: Mapping[int, str]
    session: str | None = None
    pooled: Pooled | None = None
    end: int | None = None
    stop: StopIdentity | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the whole value."""
        return self.values.shape if self.pooled is None else self.pooled.shape

    @property
    def is_pattern(self) -> bool:
        return site_of(self.site).point == "pattern" and len(self.shape) == 3

    @property
    def has_heads(self) -> bool:
        return self.axes == "T H D" and self.values.ndim == 3

    @property
    def heads(self) -> list[int]:
        """The numbers of the heads (or features) of the value: the selected ones, or all."""
        selector = site_of(self.site).selector
        return list(selector) if selector is not None else list(range(self.shape[1]))

    @property
    def line(self) -> str:
        value = f"{self.dtype} {shape(self.shape)} ({self.axes})"
        return f"{value}, {at_positions(self.all_positions)}, {self.exactness}"

    @property
    def all_positions(self) -> tuple[int, ...]:
        """The positions of the picture."""
        return self.positions if self.pooled is None else self.pooled.positions

    @property
    def key_positions(self) -> range:
        """The positions of the keys. They end at the last position of the pass; with windowed attention the first ones
        are missing."""
        end = self.all_positions[-1] + 1 if self.end is None else self.end
        return range(end - self.shape[-1], end)

    @property
    def attention(self) -> Attention:
        """The pattern as it is drawn."""
        return Attention.of(self.values) if self.pooled is None else Attention.pooled(self.pooled)
