"""The gradient of a metric by the logits: a metric computed on numbers that carry their derivatives (forward mode).

The language of metrics stays one: these numbers are floats, and the same compiled expression takes them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from djinn_jupyter.engine.interventions.metric import Metric
from djinn_jupyter.engine.interventions.token_readings import READINGS, TokenReading, of_token
from djinn_jupyter.engine.model.loading.tokenizer import TokenText
from djinn_jupyter.errors import InvalidCondition

Reading = tuple[TokenReading, int]  # of a token


class Slope(float):
    """A number, and its derivative by each reading that it was computed from."""

    by: Mapping[Reading, float]

    @classmethod
    def of(cls, value: float, *parts: tuple[float, object]) -> Slope:
        """Return `value` with the slopes of its parts, each times its own factor."""
        made = cls(value)
        by: dict[Reading, float] = {}
        for factor, part in parts:
            for reading, slope in part.by.items() if isinstance(part, Slope) else ():
                by[reading] = by.get(reading, 0.0) + factor * slope
        made.by = by
        return made

    @classmethod
    def read(cls, value: float, reading: Reading) -> Slope:
        made = cls(value)
        made.by = {reading: 1.0}
        return made

    def __neg__(self) -> Slope:
        return Slope.of(float.__neg__(self), (-1.0, self))

    def __abs__(self) -> Slope:
        return Slope.of(float.__abs__(self), (math.copysign(1.0, self) if self else 0.0, self))

    def __add__(self, other: float) -> Slope:
        return Slope.of(float.__add__(self, other), (1.0, self), (1.0, other))

    __radd__ = __add__

    def __sub__(self, other: float) -> Slope:
        return Slope.of(float.__sub__(self, other), (1.0, self), (-1.0, other))

    def __rsub__(self, other: float) -> Slope:
        return Slope.of(float.__rsub__(self, other), (-1.0, self))

    def __mul__(self, other: float) -> Slope:
        return Slope.of(float.__mul__(self, other), (float(other), self), (float(self), other))

    __rmul__ = __mul__

    def __truediv__(self, other: float) -> Slope:
        return _quotient(self, other)

    def __rtruediv__(self, other: float) -> Slope:
        return _quotient(other, self)

    def __mod__(self, other: float) -> Slope:
        return Slope.of(float.__mod__(self, other), (1.0, self), (-(float(self) // float(other)), other))

    def __rmod__(self, other: float) -> Slope:
        return Slope.of(float.__rmod__(self, other), (-(float(other) // float(self)), self))


def _quotient(one: float, other: float) -> Slope:
    above, below = float(one), float(other)
    value = above / below
    return Slope.of(value, (1.0 / below, one), (-value / below, other))


def require_slopes(metric: Metric) -> None:
    """Raise InvalidCondition for a metric that has no gradient."""
    for name in sorted(metric.condition.names):
        if READINGS[name].add_slope is None:
            raise InvalidCondition(
                f"The metric {metric.condition.text!r} has no gradient, because {READINGS[name].why_none}; attribute "
                "logit() or prob(), or sweep."
            )


def metric_gradient(metric: Metric, logits_V: Tensor) -> Tensor:
    """Return the derivatives [V], float32, of a metric by the logits, at these."""
    value: Any = metric.condition.value(_SlopedRow(logits_V, metric.tokenizer))
    row_V = logits_V.to(torch.float32)
    found_V = torch.zeros_like(row_V)
    for (reading, token), slope in value.by.items() if isinstance(value, Slope) else ():
        assert reading.add_slope is not None
        reading.add_slope(found_V, slope, row_V, token)
    return found_V


@dataclass(frozen=True, slots=True)
class _SlopedRow:
    """A row of logits whose readings carry their slopes."""

    logits_V: Tensor
    tokenizer: TokenText

    def read(self, name: str) -> Any:
        raise InvalidCondition(f"A metric knows no {name!r}.")

    def of_token(self, name: str, token: str | int) -> float:
        number = self.tokenizer.token_id(token) if isinstance(token, str) else token
        return Slope.read(of_token(name, self.logits_V, number), (READINGS[name], number))
