"""The model's epilogue (final norm, head) as a linear map at one residual value, with the norm's factor held fixed.

Derived by arithmetic, not from a table of names: the norm's output over its input, and a factor between the head's
logits and the model's. UnknownSite where the result is not linear. Shapes: x_D a residual, D features; V tokens."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from djinn_jupyter.engine.model.hooks.taps import Tap
from djinn_jupyter.errors import UnknownSite

ALIKE = 2e-2  # relative to the largest entry: bfloat16 keeps eight bits
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
    gain_D, mean, shift_D = _norm(norm.module, x_D, on_host(normed_D))
    scale = _scale(lens(x_D[None])[0], head(normed_D))  # of the same bits, so that no rounding is taken for a scale
    row_D = on_host(weight_VD[token])
    direction_D = row_D * gain_D * scale
    constant = float(row_D @ shift_D) + (0.0 if bias is None else float(bias[token]))
    return Readout(direction_D=direction_D - (direction_D.mean() if mean else 0.0), constant=constant * scale)


def _norm(norm: nn.Module, x_D: Tensor, y: Tensor) -> tuple[Tensor, bool, Tensor]:
    """Return gain_D, whether the mean is subtracted first, and shift_D: the norm at x_D, where it gives y, with its
    factor held fixed."""
    x = on_host(x_D)
    mean = isinstance(norm, nn.LayerNorm)
    gain, shift = _layer_norm(norm, x) if isinstance(norm, nn.LayerNorm) else _rms_norm(norm, x_D)
    if not _alike(y, gain * (x - x.mean() if mean else x) + shift):
        raise UnknownSite(NOT_LINEAR.format(why=f"{type(norm).__name__} is neither a LayerNorm nor an RMS norm"))
    return gain, mean, shift


def _layer_norm(norm: nn.LayerNorm, x: Tensor) -> tuple[Tensor, Tensor]:
    gain = torch.ones_like(x) if norm.weight is None else on_host(norm.weight)
    shift = torch.zeros_like(x) if norm.bias is None else on_host(norm.bias)
    return gain / torch.sqrt(x.var(unbiased=False) + norm.eps), shift


def _rms_norm(norm: nn.Module, x_D: Tensor) -> tuple[Tensor, Tensor]:
    """Return the gain that the norm has at a value of the same root mean square as x_D, with no zero feature."""
    x = on_host(x_D)
    even = torch.full_like(x_D, float(x.square().mean().sqrt()), dtype=torch.float32)
    return on_host(norm(even[None, None])[0, 0]) / on_host(even), torch.zeros_like(x)


def _scale(logits_V: Tensor, plain_V: Tensor) -> float:
    """Return the factor from the head's logits to the model's. UnknownSite where none fits, as with a soft-cap."""
    model_V, head_V = on_host(logits_V), on_host(plain_V)
    factor = float((model_V @ head_V) / (head_V @ head_V))
    if not _alike(model_V, head_V * factor):
        raise UnknownSite(NOT_LINEAR.format(why="the model bends its logits after the head, as a soft-cap does"))
    return factor


def _alike(one: Tensor, other: Tensor) -> bool:
    return bool((one - other).abs().max() <= ALIKE * one.abs().max())
