"""The value of a forward pass at one tap, as rules, watches and breakpoints see it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import torch
from torch import Tensor

from djinn_jupyter.engine.model.hooks.taps import Tap
from djinn_jupyter.engine.passes.conditions import Condition, of_token
from djinn_jupyter.errors import InvalidCondition
from djinn_jupyter.modules.engine.arithmetic import OfUnits
from djinn_jupyter.wire.sites import Site

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

    @property
    def value(self) -> Tensor:
        if self._value is None:
            self._met = self._value = self.tap.read(self.raw)
        return self._value

    def units(self, selector: tuple[int, ...] | None) -> Tensor:
        """Return the value of the selected heads or features: [T, m, ...]. An added module computes no others."""
        if selector is None:
            return self.value
        if self._value is not None:
            return self._value[:, list(selector)]
        return self._reader()(selector)

    def numbers(self, selector: tuple[int, ...] | None) -> list[float] | None:
        """Return the only number of one selected unit in each row; None where it has to be read from `units`."""
        if selector is None or len(selector) != 1 or self._value is not None:
            return None
        return self._reader().numbers(selector)

    def _reader(self) -> OfUnits:
        if self._units is None:
            self._units = self.tap.reading(self.raw)
        return self._units

    @property
    def rows(self) -> int:
        return self.tap.rows_in(self.raw)

    def row_positions(self) -> range:
        """Return the positions of the value's rows: the whole pass, or the last ones, if the model kept only those."""
        return self.positions[len(self.positions) - self.rows :]

    def row_tokens(self) -> tuple[int, ...]:
        return self.tokens[len(self.tokens) - self.rows :]

    def change(self, value: Tensor) -> None:
        """Take another value, of the same shape, from here on; the raw tensor is unchanged."""
        self._value = value

    def written(self) -> Tensor:
        """Return a copy of the raw tensor with the value in it."""
        return self.tap.write(self.raw, self.value, self._met)


LENS_ROWS = 256
Texts = Callable[[int], str]
TokenIds = Callable[[str], int]


def evaluate(condition: Condition, site_value: SiteValue, site: Site, row: int, text_of: Texts, id_of: TokenIds) -> Any:
    """Return the value of the condition's expression for one row of a site value."""
    return condition.value(SiteScope(site_value, site, text_of, id_of, row))


def rows_meeting(
    condition: Condition, site_value: SiteValue, site: Site, text_of: Texts, id_of: TokenIds, rows: Sequence[int]
) -> Iterator[int]:
    """Yield those of the rows where the condition is true of the value at `site`. InvalidCondition if impossible."""
    if condition.comparison is not None and rows:
        numbers = MEASURES[condition.comparison.name](site_value, site)
        yield from (row for row in rows if condition.comparison.holds(numbers[row]))
        return
    scope = SiteScope(site_value, site, text_of, id_of)
    if condition.same_for_all_positions:
        yield from rows if rows and condition.holds(scope) else ()
        return
    for row in rows:
        scope.row = row
        if condition.holds(scope):
            yield row


def norms(site_value: SiteValue, site: Site) -> list[float]:
    """Return the L2 norm of each row."""
    norms_T: list[float] = site_value.units(site.selector).to(torch.float32).flatten(1).norm(dim=1).tolist()
    return norms_T


def values(site_value: SiteValue, site: Site) -> list[float]:
    """Return the only number of each row. Raises InvalidCondition where it has several."""
    alone = site_value.numbers(site.selector)
    if alone is not None:
        return alone
    part, rows = site_value.units(site.selector), site_value.rows
    if part.numel() != rows:
        raise InvalidCondition(
            f"value is of one feature, and {site} has {part.numel() // rows}: name one, as in "
            f"{site.whole()}[0]; norm is of several."
        )
    return part.flatten().tolist()


MEASURES: Final[Mapping[str, Callable[[SiteValue, Site], list[float]]]] = {"value": values, "norm": norms}


@dataclass(slots=True)
class SiteScope:
    """Supplies a condition with the values of one row of a site value. Norms and values are computed for all rows at
    once, the lens for blocks of rows, on the device, when first read."""

    site_value: SiteValue
    site: Site
    text_of: Texts
    id_of: TokenIds
    row: int = 0
    _measured: dict[str, list[float]] = field(default_factory=dict)
    _lens: list[Tensor] = field(default_factory=list)

    def read(self, name: str) -> Any:
        match name:
            case "value" | "norm":
                if name not in self._measured:
                    self._measured[name] = MEASURES[name](self.site_value, self.site)
                return self._measured[name][self.row]
            case "step":
                return self.site_value.step
            case "position":
                return self.site_value.row_positions()[self.row]
            case "token_id":
                return self.site_value.row_tokens()[self.row]
            case "token":
                return self.text_of(self.site_value.row_tokens()[self.row])
            case "top1":
                return self.text_of(int(self._logits().argmax()))
        raise InvalidCondition(f"A condition knows no {name!r}.")

    def of_token(self, name: str, token: str | int) -> float:
        return of_token(name, self._logits(), self.id_of(token) if isinstance(token, str) else token)

    def _logits(self) -> Tensor:
        """Return logits [V] of the present row; the lens is applied to a block of rows at once."""
        if self.site_value.lens is None:
            raise InvalidCondition(
                f"top1, p, logit and rank need a site of the residual stream's width; {self.site} is none."
            )
        block, offset = divmod(self.row, LENS_ROWS)
        while len(self._lens) <= block:
            start = len(self._lens) * LENS_ROWS
            self._lens.append(self.site_value.lens(self.site_value.value[start : start + LENS_ROWS]))
        return self._lens[block][offset]


@dataclass(frozen=True, slots=True, kw_only=True)
class Guard:
    """Says at which rows of a value a rule applies. `text_of` and `id_of` are the tokenizer's."""

    condition: Condition
    text_of: Texts
    id_of: TokenIds

    def holding(self, site_value: SiteValue, site: Site, rows: Sequence[int]) -> list[int]:
        """Return those of the rows where the condition is true of the value at `site`. InvalidCondition if
        impossible."""
        return list(rows_meeting(self.condition, site_value, site, self.text_of, self.id_of, rows))
