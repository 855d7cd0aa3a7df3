"""Direct logit attribution by plain hooks and gradients on a plain model: the reference, with no code of the engine."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

Part = tuple[str, int, int | None]
"""A point, its layer, and its head if it is of one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlainAttribution:
    parts: dict[Part, float]
    neurons: dict[int, Tensor]
    embedding: float
    logit: float


def plain_attribution(model: Any, prompt: tuple[int, ...], one: int, other: int) -> PlainAttribution:
    """Attribute the logit of `one` minus that of `other` at the last position to modules and heads."""
    inner = _part(model, "transformer", "gpt_neox", "model")
    blocks = _part(inner, "h", "layers")
    norm = _part(inner, "ln_f", "norm", "final_layer_norm", "final_layernorm")
    seen: dict[Any, Tensor] = {}
    hooks = [blocks[0].register_forward_pre_hook(_keep(seen, "embedding", given=True))]
    hooks += [norm.register_forward_pre_hook(_keep(seen, "x", given=True))]
    for layer, block in enumerate(blocks):
        attention = _attention(block)
        hooks += [attention.register_forward_hook(_keep(seen, ("attn_out", layer, None)))]
        hooks += [block.mlp.register_forward_hook(_keep(seen, ("mlp_out", layer, None)))]
        for last_map in _last_maps(block.mlp):
            hooks += [last_map.register_forward_pre_hook(_keep(seen, ("neurons", layer), given=True))]
        hooks += [_output_map(attention).register_forward_pre_hook(_keep(seen, ("z", layer), given=True))]
    with torch.no_grad():
        logits = model(torch.tensor([prompt], device=model.device), logits_to_keep=1).logits[0, -1].double()
    for hook in hooks:
        hook.remove()
    direction = _gradient(model.get_output_embeddings(), norm, seen["x"], one, other)
    parts = {key: float(direction @ value) for key, value in seen.items() if len(key) == 3}
    for layer, block in enumerate(blocks):
        z_HD = seen["z", layer].view(model.config.num_attention_heads, -1)
        shares = direction @ _columns(_output_map(_attention(block))).view(*z_HD.shape, -1).transpose(-1, -2)
        parts.update(
            {("z", layer, head): float(share @ z) for head, (share, z) in enumerate(zip(shares, z_HD, strict=True))}
        )
    neurons = {
        layer: seen["neurons", layer] * (_columns(last_map) @ direction)
        for layer, block in enumerate(blocks)
        for last_map in _last_maps(block.mlp)
    }
    return PlainAttribution(
        parts=parts,
        neurons=neurons,
        embedding=float(direction @ seen["embedding"]),
        logit=float(logits[one] - logits[other]),
    )


def _keep(seen: dict[Any, Tensor], key: Any, *, given: bool = False) -> Callable[..., None]:
    """Return a hook that keeps the last position of a module's input or output, in float64."""

    def hook(module: Any, args: Any, output: Any = None) -> None:
        value = args if given else output
        value = value[0] if isinstance(value, tuple) else value
        seen[key] = value.reshape(-1, value.shape[-1])[-1].detach().double()

    return hook


def _part(module: Any, *names: str) -> Any:
    """Return the module that families call by one of these names."""
    return next(getattr(module, name) for name in names if hasattr(module, name))


def _attention(block: Any) -> Any:
    return _part(block, "attn", "self_attn", "attention", "self_attention")


def _output_map(attention: Any) -> Any:
    return _part(attention, "c_proj", "o_proj", "dense", "out_proj")


def _last_maps(mlp: Any) -> list[Any]:
    """Return the map that makes an MLP's output; a mixture of experts has none."""
    names = ("down_proj", "c_proj", "dense_4h_to_h", "fc2", "fc_out")
    return [getattr(mlp, name) for name in names if hasattr(mlp, name)]


def _columns(output_map: Any) -> Tensor:
    """Return the weights as [what heads give, what is added]: GPT-2 has them so, others the other way."""
    weight: Tensor = output_map.weight.detach().double()
    return weight.T if isinstance(output_map, torch.nn.Linear) else weight


def _gradient(head: Any, norm: Any, x: Tensor, one: int, other: int) -> Tensor:
    """Return the gradient of the logits' difference at x, with the norm's factor taken as a constant."""
    x = x.clone().requires_grad_(True)
    centred = x - x.mean() if isinstance(norm, torch.nn.LayerNorm) else x
    eps = norm.eps if isinstance(norm, torch.nn.LayerNorm) else norm.variance_epsilon
    normed = centred * torch.rsqrt(centred.square().mean() + eps).detach() * norm.weight.double()
    weight = head.weight.detach().double()
    (gradient,) = torch.autograd.grad((weight[one] - weight[other]) @ normed, x)
    return gradient
