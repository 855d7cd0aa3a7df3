"""AtP*'s corrections by hand on a plain Llama: one query or key replaced at a time, one layer bypassed at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from tests.device import DEVICE

Hook = Callable[..., Any]
A, B = 17, 42


def carried(model: Any, clean: tuple[int, ...], corrupted: tuple[int, ...], maps: str) -> Tensor:
    """Return [layer, position, head], float64: the change of z by one head's query or key at one position, replaced by
    the clean one, times the gradient of logit(A) - logit(B) at z. `maps` is q_proj or k_proj."""
    made, _ = _run(model, clean, maps)
    _, z = _run(model, corrupted, maps)
    gradients = [one.grad for one in z]
    layers, length = len(made), len(corrupted)
    width = model.config.head_dim
    heads = made[0].shape[-1] // width
    found = torch.zeros(layers, length, heads, dtype=torch.float64)
    for layer in range(layers):
        for position in range(length):
            for head in range(heads):
                columns = slice(head * width, (head + 1) * width)
                _, changed = _run(model, corrupted, maps, (layer, position, columns, made[layer]))
                found[layer, position, head] = ((changed[layer] - z[layer]) * gradients[layer]).sum()
    return found


def bypassed(model: Any, clean: tuple[int, ...], corrupted: tuple[int, ...]) -> Tensor:
    """Return [layer, position, head], float64: the mean over the other layers of the size of (clean - corrupted) z
    times its gradient, with that layer's additions cut from the way back."""
    _, clean_z = _run(model, clean, "q_proj")
    layers = model.model.layers
    each = []
    for dropped in range(len(layers)):
        hook = layers[dropped].register_forward_hook(_cut)
        _, z = _run(model, corrupted, "q_proj")
        hook.remove()
        heads = model.config.num_attention_heads
        scores = [
            (((clean_one - one).detach() * _or_zero(one))[0].unflatten(-1, (heads, -1))).sum(-1)
            for clean_one, one in zip(clean_z, z, strict=True)
        ]
        each.append(torch.stack(scores).abs())
    return torch.stack(each).sum(0).double() / (len(layers) - 1)


def _or_zero(value: Tensor) -> Tensor:
    return torch.zeros_like(value) if value.grad is None else value.grad


def _cut(module: Any, args: Any, output: Any) -> Any:
    value = output[0] if isinstance(output, tuple) else output
    through = args[0] + (value - args[0]).detach()
    return (through, *output[1:]) if isinstance(output, tuple) else through


def _run(
    model: Any, line: tuple[int, ...], maps: str, replaced: tuple[int, int, slice, Tensor] | None = None
) -> tuple[list[Tensor], list[Tensor]]:
    """Run a line forward and back. Return what the maps made and what the heads gave, by layer, with gradients; with
    one head's columns at one position of one layer replaced where they are given."""
    made: list[Tensor] = []
    z: list[Tensor] = []

    def map_made(layer: int) -> Hook:
        def hook(module: Any, args: Any, output: Tensor) -> Tensor:
            output = output.clone()
            if replaced is not None and replaced[0] == layer:
                _, position, columns, other = replaced
                output[0, position, columns] = other[0, position, columns].detach()
            made.append(output)
            return output

        return hook

    def heads_gave(module: Any, args: Any) -> None:
        args[0].retain_grad()
        z.append(args[0])

    with _hooked(model, maps, map_made, heads_gave):
        _difference(model, line).backward()
    return [one.detach() for one in made], z


@contextmanager
def _hooked(model: Any, maps: str, map_made: Callable[[int], Hook], heads_gave: Hook) -> Iterator[None]:
    hooks = [model.get_input_embeddings().register_forward_hook(lambda m, i, output: output.requires_grad_())]
    for layer, block in enumerate(model.model.layers):
        hooks.append(getattr(block.self_attn, maps).register_forward_hook(map_made(layer)))
        hooks.append(block.self_attn.o_proj.register_forward_pre_hook(heads_gave))
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def _difference(model: Any, line: tuple[int, ...]) -> Tensor:
    with torch.enable_grad():
        row = model(torch.tensor([line], device=DEVICE), use_cache=False).logits[0, -1]
        found: Tensor = row[A] - row[B]
    return found
