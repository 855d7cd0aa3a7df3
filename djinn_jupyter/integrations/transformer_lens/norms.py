"""The divisor of a norm, and the quotient: two hook points of TransformerLens that are no site, for the engine's norms
are whole modules. They follow from the norm's input, as TransformerLens computes them."""

from __future__ import annotations

from typing import Any

from torch import Tensor


def of_norm(norm: Any, hook: str, value: Tensor) -> Tensor:
    """Return `hook_scale` or `hook_normalized` of one of TransformerLens's norms for this input."""
    wide = value.float() if value.dtype.itemsize < 4 else value
    if not norm.uses_rms_norm:
        wide = wide - wide.mean(-1, keepdim=True)
    scale = (wide.pow(2).mean(-1, keepdim=True) + _eps_of(norm)).sqrt()
    return scale if hook == "hook_scale" else wide / scale


def _eps_of(norm: Any) -> float:
    module = norm.original_component
    found = next((getattr(module, name) for name in ("eps", "variance_epsilon") if hasattr(module, name)), None)
    return float(norm.config.eps if found is None else found)
