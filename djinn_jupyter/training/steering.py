"""Steering vectors: a direction in which the positive rows differ from the others, as long as the difference of the
means is along it, so that a coefficient of 1 moves the one mean as far as the other lies.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from djinn_jupyter.client.training.jobs import Method
from djinn_jupyter.errors import UsageError
from djinn_jupyter.training.probe import logistic
from djinn_jupyter.training.reporting import Report, never


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SteeringDirection:
    """The vector, and where rows are read on it: 0 at the mean of the negative rows, 1 at that of the positive."""

    vector_D: Tensor
    weight_1D: Tensor
    bias_1: Tensor


def direction(
    x_ND: Tensor, positive_N: Tensor, method: Method, penalty: float, report: Report = never
) -> SteeringDirection:
    """Return the direction that a method finds. Raises UsageError where the means lie at one place along it."""
    x_ND = x_ND.double()
    low_D, high_D = x_ND[~positive_N].mean(0), x_ND[positive_N].mean(0)
    unit_D = _along(x_ND, positive_N, high_D - low_D, method, penalty, report)
    length = (high_D - low_D) @ unit_D
    if not abs(float(length)) > 0:
        raise UsageError("Positive and other rows have the same mean along this direction, so it steers nowhere.")
    vector_D = length * unit_D
    weight_D = vector_D / vector_D.square().sum()
    return SteeringDirection(vector_D=vector_D, weight_1D=weight_D[None], bias_1=-(weight_D @ low_D)[None])


def _along(x_ND: Tensor, positive_N: Tensor, apart_D: Tensor, method: Method, penalty: float, report: Report) -> Tensor:
    """Return the direction, of length 1; its sign is chosen by the means."""
    if method == "mean_difference":
        found_D = apart_D
    elif method == "pca":
        found_D = torch.linalg.svd(x_ND - x_ND.mean(0), full_matrices=False).Vh[0]
    else:
        found_D = logistic(x_ND, positive_N.long(), 2, penalty, report).weight_CD[0]
    length = found_D.norm()
    return found_D / length if length > 0 else found_D
