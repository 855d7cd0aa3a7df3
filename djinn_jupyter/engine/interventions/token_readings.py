"""The readings of one token in a row of logits, for conditions and metrics: each is declared once, in `READINGS`.

Shapes: V tokens of the vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TokenReading:
    """`of` reads a token in a row of fp32 logits [V]. `add_slope` adds to a row [V] a factor times the gradient by the
    logits, in place; a reading without one says why."""

    of: Callable[[Tensor, int], float]
    add_slope: Callable[[Tensor, float, Tensor, int], None] | None = None
    why_none: str = ""


def _add_one(found_V: Tensor, factor: float, logits_V: Tensor, token: int) -> None:
    found_V[token] += factor


def _probability(logits_V: Tensor, token: int) -> float:
    return float(torch.softmax(logits_V, dim=-1)[token])


def _add_softmax(found_V: Tensor, factor: float, logits_V: Tensor, token: int) -> None:
    probabilities_V = torch.softmax(logits_V, dim=-1)
    found_V -= factor * probabilities_V[token] * probabilities_V
    found_V[token] += factor * probabilities_V[token]


def _rank(logits_V: Tensor, token: int) -> float:
    """Return the place of a token, of which 1 is the most likely; NaN where its logit is."""
    return math.nan if logits_V[token].isnan() else float((logits_V > logits_V[token]).sum()) + 1


_PROB: Final = TokenReading(of=_probability, add_slope=_add_softmax)
READINGS: Final[Mapping[str, TokenReading]] = {
    "p": _PROB,
    "prob": _PROB,
    "logit": TokenReading(of=lambda logits_V, token: float(logits_V[token]), add_slope=_add_one),
    "rank": TokenReading(of=_rank, why_none="a rank moves in whole numbers"),
}


def of_token(name: str, logits_V: Tensor, token: int) -> float:
    """Return a reading of a token, by its name."""
    return READINGS[name].of(logits_V.to(torch.float32), token)
