"""The value of a forward pass at one tap, as rules, watches and breakpoints see it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from torch import Tensor

from djinn_jupyter.engine.model.added.units import OfUnits
from djinn_jupyter.engine.model.hooks.taps import Tap

Lens = Callable[[Tensor], Tensor]


@dataclass(slots=True, kw_only=True)
class SiteValue:
    """`value` has positions first: [T, D], [T, H, D] or [T, H, K]; row i belongs to the absolute position
    `row_positions()[i]` and the token `row_tokens()[i]`. `lens` applies the model's epilogue to rows of the residual
    stream [n, D] and returns logits [n, V]; None where the value is not [T, D] of the residual stream's width."""

    tap: Tap
    raw: Tensor
    tokens: tuple[int, ...]
    positions: range
    step: int
    lens: Lens | None
    _met: Tensor | None = field(default=None, init=False)
    _value: Tensor | None = field(default=None, init=False)
    _units: OfUnits | None = field(default=None, init=False)
    _rows: int | None = field(default=None, init=False)
    _row_positions: range | None = field(default=None, init=False)

    @property
    def value(self) -> Tensor:
        if self._value is None:
            self._met = self._value = self.tap.read(self.raw)
        return self._value

    def units(self, selector: tuple[int, ...] | None) -> Tensor:
        """Return the value of the selected heads or features: [T, m, ...]. Of an added module no others are
        computed."""
        if selector is None:
            return self.value
        if self._value is not None:
            return self._value[:, list(selector)]
        return self._reader()(selector)

    def numbers(self, selector: tuple[int, ...] | None) -> list[float] | None:
        """Return the only number that one selected unit has in each row; None where it is to be read from `units`."""
        if selector is None or len(selector) != 1 or self._value is not None:
            return None
        return self._reader().numbers(selector)

    def _reader(self) -> OfUnits:
        if self._units is None:
            self._units = self.tap.reading(self.raw)
        return self._units

    @property
    def rows(self) -> int:
        if self._rows is None:
            self._rows = self.tap.rows_in(self.raw)
        return self._rows

    def row_positions(self) -> range:
        """Return the positions of the value's rows: the whole pass, or its last ones where the model kept only those
        (logits)."""
        if self._row_positions is None:
            self._row_positions = self.positions[len(self.positions) - self.rows :]
        return self._row_positions

    def row_tokens(self) -> tuple[int, ...]:
        return self.tokens[len(self.tokens) - self.rows :]

    def change(self, value: Tensor) -> None:
        """Have another value, of the same shape, from here on; the raw tensor stays as it was met."""
        self._value = value

    def written(self) -> Tensor:
        """Return a copy of the raw tensor with the value in it."""
        return self.tap.write(self.raw, self.value, self._met)
