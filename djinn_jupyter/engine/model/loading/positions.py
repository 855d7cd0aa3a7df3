"""Find whether `generate` passes position ids to a model, or the model counts positions itself."""

from __future__ import annotations

import inspect
from typing import Any

import torch


def takes_positions(model: Any) -> bool:
    """True where `generate` passes the positions to the model's forward. Some families drop them on the way, because
    their own begin at another number."""
    if "position_ids" not in inspect.signature(model.forward).parameters:
        return False
    tokens = torch.ones((1, 2), dtype=torch.long, device=model.device)
    try:
        given = model.prepare_inputs_for_generation(
            tokens,
            attention_mask=torch.ones_like(tokens),
            position_ids=torch.arange(2, device=model.device)[None],
            use_cache=True,
            is_first_iteration=True,
        )
    except (AttributeError, LookupError, RuntimeError, TypeError, ValueError):
        return True  # the method needs more than a text's inputs
    return given.get("position_ids") is not None
