"""The model's epilogue (final norm, head) as a linear map at one residual value, with the norm's factor held fixed.

Derived by arithmetic, not from a table of names: the norm's output over its input, and a factor between the head's
logits and the model's. UnknownSite where the result is not linear. Shapes: x_D a residual, D features; V tokens."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor, nn

from djinn_jupyter.engine.model.hooks.taps import Tap
from djinn_jupyter.errors import UnknownSite

ALIKE: Final = {torch.float32: 1e-5, torch.float64: 1e-5}  # relative to the largest entry
ALIKE_IN_16_BITS: Final = 2e-2  # bfloat16 keeps eight bits
CENTERED: Final = 1e-2  # of the norm's output: what is left of equal features once their mean is subtracted
NOT_LINEAR = "no logit is a sum of contributions here: {why}."


@dataclass(frozen=True, slots=True, kw_only=True)
class Readout:
    """The logit of a token (or a difference) is `direction_D` . x + `constant`, in float64 on the host."""

    direction_D: Tensor
    constant: float

    def minus(self, other: Readout) -> Readout:
        return Readout(direction_D=self.direction_D - other.direction_D, constant=self.constant - other.constant)

    def of(self, value_D: Tensor) -> float:
        return float(self.direction_D @ on_host(value_D))


def on_host(value: Tensor) -> Tensor:
    return value.detach().to("cpu", torch.float64)


@torch.inference_mode()
def readout(model: nn.Module, norm: Tap | str, lens: Callable[[Tensor], Tensor], x_D: Tensor, token: int) -> Readout:
    """Return the Readout of `token` at the residual x_D; `lens` is the model's own epilogue. UnknownSite where it is
    not linear."""
    head: Any = model.get_output_embeddings()  # type: ignore[operator]
    if isinstance(norm, str) or norm.module is None or not isinstance(head, nn.Linear):
        raise UnknownSite(NOT_LINEAR.format(why="this model does not end in one norm and one linear head"))
    weight_VD, bias = head.weight, head.bias
    normed_D = norm.module(x_D[None, None])[0, 0]
    if normed_D.shape != x_D.shape:  # as in OPT of 350 million, which ends in a projection
        raise UnknownSite(NOT_LINEAR.format(why="this model narrows the residual before its head"))
    gain_D, mean, shift_D = _norm(norm.module, x_D, normed_D)
    scale = _scale(lens(x_D[None])[0], head(normed_D))  # of the same bits, so that no rounding is taken for a scale
    row_D = on_host(weight_VD[token])
    direction_D = row_D * gain_D * scale
    constant = float(row_D @ shift_D) + (0.0 if bias is None else float(bias[token]))
    return Readout(direction_D=direction_D - (direction_D.mean() if mean else 0.0), constant=constant * scale)


def _norm(norm: nn.Module, x_D: Tensor, y_D: Tensor) -> tuple[Tensor, bool, Tensor]:
    """Return gain_D, whether the mean is subtracted first, and shift_D: the norm at x_D, where it gives y_D, with its
    factor held fixed. The gain is that at another value of the same size, which has no feature near zero."""
    wide, x = deepcopy(norm).float(), on_host(x_D)

    def normed(value_D: Tensor) -> Tensor:
        return on_host(wide(value_D.to(x_D.device, torch.float32)[None, None])[0, 0])

    shift = normed(torch.zeros_like(x))
    even = torch.ones_like(x) * x.square().mean().sqrt()
    mean = bool((normed(even) - shift).abs().max() < CENTERED * on_host(y_D).abs().max())
    centered = x - x.mean() if mean else x
    if mean:
        signs = 1.0 - 2.0 * (torch.arange(len(x)) % 2)
        signs -= signs.mean()  # zero but for an odd number of features
        even = signs * x.std(correction=0) / signs.std(correction=0)
    gain = (normed(even) - shift) / even
    if not _alike(on_host(y_D), gain * centered + shift, y_D.dtype):
        raise UnknownSite(NOT_LINEAR.format(why=f"{type(norm).__name__} is neither a LayerNorm nor an RMS norm"))
    return gain, mean, shift


def _scale(logits_V: Tensor, plain_V: Tensor) -> float:
    """Return the factor from the head's logits to the model's. UnknownSite where none fits, as with a soft-cap."""
    model_V, head_V = on_host(logits_V), on_host(plain_V)
    factor = float((model_V @ head_V) / (head_V @ head_V))
    if not _alike(model_V, head_V * factor, plain_V.dtype):
        raise UnknownSite(NOT_LINEAR.format(why="the model bends its logits after the head, as a soft-cap does"))
    return factor


def _alike(one: Tensor, other: Tensor, computed_in: torch.dtype) -> bool:
    """True where two values differ by no more than the rounding of the dtype that they were computed in."""
    largest = max(float(one.abs().max()), float(other.abs().max()))
    return float((one - other).abs().max()) <= ALIKE.get(computed_in, ALIKE_IN_16_BITS) * largest
