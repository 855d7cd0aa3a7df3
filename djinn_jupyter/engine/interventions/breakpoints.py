"""Breakpoints: a site, an optional condition, a hit count. Decides whether to stop at a moment; stops nothing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from djinn_jupyter.engine.interventions.conditions import Condition
from djinn_jupyter.engine.interventions.site_value import Moment
from djinn_jupyter.engine.interventions.token_readings import of_token
from djinn_jupyter.engine.model.hooks.taps import Tap
from djinn_jupyter.errors import InvalidCondition
from djinn_jupyter.wire.nouns import BreakpointDescription
from djinn_jupyter.wire.sites import Site

LENS_ROWS = 256
Texts = Callable[[int], str]
TokenIds = Callable[[str], int]


@dataclass(slots=True, kw_only=True)
class Breakpoint:
    """`hits` counts the passes in which the condition held; `note` names the parts of the condition that may have
    another meaning."""

    number: int
    site: Site
    tap: Tap
    condition: Condition | None
    once: bool
    text_of: Texts
    id_of: TokenIds
    enabled: bool = True
    hits: int = 0
    note: str | None = None

    def meets(self, moment: Moment) -> int | None:
        """Return the absolute position to report where the pass should stop at this moment, else None. It is the first
        position where the condition holds; without a condition, or with one that is the same for all positions, the
        pass's last."""
        if self.condition is None:
            return moment.positions[-1]
        scope = _MomentScope(moment, self.site, self.text_of, self.id_of)
        if self.condition.same_for_all_positions:
            return moment.positions[-1] if self.condition.holds(scope) else None
        for row, position in enumerate(moment.row_positions()):
            scope.row = row
            if self.condition.holds(scope):
                return position
        return None

    def arm(self, *, enabled: bool, once: bool) -> None:
        self.enabled, self.once = enabled, once

    def count_hit(self) -> None:
        self.hits += 1

    def describe(self) -> BreakpointDescription:
        return BreakpointDescription(
            number=self.number,
            site=str(self.site),
            when=None if self.condition is None else self.condition.text,
            once=self.once,
            enabled=self.enabled,
            hits=self.hits,
            note=self.note,
        )


def evaluate(condition: Condition, moment: Moment, site: Site, row: int, text_of: Texts, id_of: TokenIds) -> Any:
    """Return the value of the condition's expression for one row of a moment."""
    return condition.value(_MomentScope(moment, site, text_of, id_of, row))


@dataclass(slots=True)
class _MomentScope:
    """Supplies a condition with the values of one row of a moment. Norms are computed for all rows at once, the lens
    for blocks of rows, on the device, when first read."""

    moment: Moment
    site: Site
    text_of: Texts
    id_of: TokenIds
    row: int = 0
    _norms: list[float] | None = None
    _lens: list[Tensor] = field(default_factory=list)

    def read(self, name: str) -> Any:
        match name:
            case "step":
                return self.moment.step
            case "position":
                return self.moment.row_positions()[self.row]
            case "token_id":
                return self.moment.row_tokens()[self.row]
            case "token":
                return self.text_of(self.moment.row_tokens()[self.row])
            case "norm":
                return self._norm_rows()[self.row]
            case "top1":
                return self.text_of(int(self._logits().argmax()))
        raise InvalidCondition(f"A condition knows no {name!r}.")

    def of_token(self, name: str, token: str | int) -> float:
        return of_token(name, self._logits(), self.id_of(token) if isinstance(token, str) else token)

    def _norm_rows(self) -> list[float]:
        if self._norms is None:
            value = self.moment.value
            part = value if self.site.selector is None else value[:, list(self.site.selector)]
            self._norms = part.to(torch.float32).flatten(1).norm(dim=1).tolist()
        return self._norms

    def _logits(self) -> Tensor:
        """Return logits [V] of the present row; the lens is applied to a block of rows at once."""
        if self.moment.lens is None:
            raise InvalidCondition(
                f"top1, p, logit and rank need a site of the residual stream's width; {self.site} is none."
            )
        block, offset = divmod(self.row, LENS_ROWS)
        while len(self._lens) <= block:
            start = len(self._lens) * LENS_ROWS
            self._lens.append(self.moment.lens(self.moment.value[start : start + LENS_ROWS]))
        return self._lens[block][offset]
