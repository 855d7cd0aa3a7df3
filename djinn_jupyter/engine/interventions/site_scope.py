"""The readings of one row of a site value for a condition: norms, tokens, the logit lens. Decides nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import torch
from torch import Tensor

from djinn_jupyter.engine.interventions.conditions import Condition
from djinn_jupyter.engine.interventions.site_value import SiteValue
from djinn_jupyter.engine.interventions.token_readings import of_token
from djinn_jupyter.errors import InvalidCondition
from djinn_jupyter.wire.sites import Site

LENS_ROWS = 256
Texts = Callable[[int], str]
TokenIds = Callable[[str], int]


def evaluate(condition: Condition, site_value: SiteValue, site: Site, row: int, text_of: Texts, id_of: TokenIds) -> Any:
    """Return the value of the condition's expression for one row of a site value."""
    return condition.value(SiteScope(site_value, site, text_of, id_of, row))


def rows_meeting(
    condition: Condition, site_value: SiteValue, site: Site, text_of: Texts, id_of: TokenIds, rows: Sequence[int]
) -> Iterator[int]:
    """Yield those of the rows where the condition holds of the value at `site`. Raises InvalidCondition where it cannot
    be evaluated."""
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
