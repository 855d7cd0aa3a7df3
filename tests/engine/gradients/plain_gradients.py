"""Attribution by hand: autograd through the whole plain model, hooks on its layers."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from tests.device import DEVICE
from tests.engine.sweeps import plain_sweep


def attributed(model: Any, clean: tuple[int, ...], corrupted: tuple[int, ...], a: int, b: int) -> Tensor:
    """Return (clean - corrupted) residual x gradient of logit(a) - logit(b), by layer and position, float64."""
    kept, hooks = list[Tensor](), []
    clean_values = plain_sweep.residuals(model, clean)

    def keep(module: Any, args: Any, output: Any) -> None:
        hidden = output[0] if isinstance(output, tuple) else output
        hidden.retain_grad()
        kept.append(hidden)

    hooks.append(model.get_input_embeddings().register_forward_hook(lambda m, i, output: output.requires_grad_()))
    hooks += [layer.register_forward_hook(keep) for layer in plain_sweep.layers_of(model)]
    with torch.enable_grad():
        row = model(torch.tensor([corrupted], device=DEVICE), use_cache=False).logits[0, -1].float()
        (row[a] - row[b]).backward()
    for hook in hooks:
        hook.remove()
    rows = [
        ((value.float() - one.detach().float()) * one.grad.float())[0].sum(-1, dtype=torch.float64)
        for value, one in zip(clean_values, kept, strict=True)
    ]
    return torch.stack(rows).cpu()
