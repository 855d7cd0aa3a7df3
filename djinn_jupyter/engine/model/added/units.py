"""Reading units of one value: heads or features, as tensors or, of a single one, as numbers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

Units = tuple[int, ...]


class OfUnits(Protocol):
    """Reads units of the value that it was made for."""

    def __call__(self, units: Units) -> Tensor:
        """Return what they have of it, [T, m, ...]."""

    def numbers(self, unit: Units) -> list[float] | None:
        """Return what a single one has of it, a number for each position; None where it has several."""


@dataclass(frozen=True, slots=True)
class UnitParts:
    """Units whose tensors a function returns."""

    part: Callable[[Units], Tensor]

    def __call__(self, units: Units) -> Tensor:
        return self.part(units)

    def numbers(self, unit: Units) -> list[float] | None:
        part = self.part(unit)
        return part.flatten().tolist() if part.numel() == len(part) else None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FeatureRows:
    """The rows of some features in the encoder, and what belongs to these. Of one feature that is what its row makes
    above a `floor` and else zero, `floor` is that number."""

    encoder_Dm: Tensor
    bias_m: Tensor
    threshold_m: Tensor | None
    gate: tuple[Tensor, Tensor] | None
    floor: float | None = None


class Products:
    """Features that are products of a value [T, D] with rows of an encoder, made `active`. Rows are those `kept`, else
    cut out. The numbers of one feature have no tensors of their own: making these takes longer than the product."""

    __slots__ = ("_active", "_before_T1", "_cut_out", "_kept", "_single", "_value_TD")

    def __init__(
        self,
        value_TD: Tensor,
        kept: Mapping[Units, FeatureRows],
        cut_out: Callable[[Units], FeatureRows],
        active: Callable[[FeatureRows, Tensor], Tensor],
    ) -> None:
        self._value_TD, self._kept, self._cut_out, self._active = value_TD, kept, cut_out, active
        self._before_T1, self._single = value_TD.new_empty(len(value_TD), 1), len(value_TD) == 1

    def __call__(self, units: Units) -> Tensor:
        return self._active(self._kept.get(units) or self._cut_out(units), self._value_TD)

    def numbers(self, unit: Units) -> list[float]:
        rows, before_T1 = self._kept.get(unit) or self._cut_out(unit), self._before_T1
        floor = rows.floor
        if floor is None:
            return self._active(rows, self._value_TD).flatten().tolist()
        torch.addmm(rows.bias_m, self._value_TD, rows.encoder_Dm, out=before_T1)
        if self._single:  # as in generation, at every token
            number = before_T1.item()
            return [0.0 if number <= floor else number]
        return [0.0 if number <= floor else number for number in before_T1.flatten().tolist()]
