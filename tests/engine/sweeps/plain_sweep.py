"""A sweep by hand: a hook on the plain model's layer, one forward a cell."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from tests.device import DEVICE

Values = dict[tuple[int, int], float]


def layers_of(model: Any) -> Any:
    for path in ("transformer.h", "transformer.blocks", "model.layers", "gpt_neox.layers", "backbone.layers"):
        inner = model
        for name in path.split("."):
            inner = getattr(inner, name, None)
        if inner is not None:
            return inner
    raise LookupError(type(model).__name__)


def metric_of(model: Any, prompt: tuple[int, ...], a: int, b: int) -> float:
    last = torch.tensor([len(prompt) - 1], device=DEVICE)  # by an index, which leaves every layer all positions
    with torch.inference_mode():
        row = model(torch.tensor([prompt], device=DEVICE), use_cache=True, logits_to_keep=last).logits[0, -1].float()
    return float(row[a]) - float(row[b])


def patched(
    model: Any,
    clean: tuple[int, ...] | None,
    corrupted: tuple[int, ...],
    a: int,
    b: int,
    kept: Any = None,
    positions: Any = None,
) -> Values:
    """Return the metric with the clean line's residual put after each layer, at each position."""
    kept = residuals(model, clean) if clean is not None else kept
    found: Values = {}
    for number, layer in enumerate(layers_of(model)):
        for position in range(len(corrupted)) if positions is None else positions:
            hook = layer.register_forward_hook(putting(kept[number], position))
            found[number, position] = metric_of(model, corrupted, a, b)
            hook.remove()
    return found


def residuals(model: Any, prompt: tuple[int, ...]) -> list[Tensor]:
    kept: list[Tensor] = []
    hooks = [layer.register_forward_hook(lambda m, a, o: kept.append(_hidden(o).clone())) for layer in layers_of(model)]
    metric_of(model, prompt, 0, 1)
    for hook in hooks:
        hook.remove()
    return kept


def _hidden(output: Any) -> Tensor:
    return output[0] if isinstance(output, tuple) else output


def putting(kept: Tensor, position: int) -> Any:
    def hook(module: Any, args: Any, output: Any) -> Any:
        hidden = _hidden(output).clone()
        hidden[..., position, :] = kept[..., position, :]
        return (hidden, *output[1:]) if isinstance(output, tuple) else hidden

    return hook
