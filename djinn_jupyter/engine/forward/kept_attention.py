"""The output of a layer's attention, which a stop behind it in that layer keeps: a pass that goes on from there does
not compute it again. The keys and values that it wrote are in the cache, as those of the layers below are."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from torch import Tensor, nn
from transformers import Cache

from djinn_jupyter.engine.model.discovery.model_map import Anatomy
from djinn_jupyter.engine.model.hooks.taps import Tap

Attended = Tensor | tuple[Tensor | None, ...]
"""What an attention module returned: the output, and where it returned weights beside it, None in their place."""


def attention_of(anatomy: Anatomy, layer: int) -> nn.Module | None:
    """Return the part of a layer that computes its attention: the one that has the keys within. None where the layer
    has none, or computes them itself."""
    keys = anatomy.taps.get(("k", layer))
    if not isinstance(keys, Tap) or keys.module is None:
        return None
    parts = (part for part in anatomy.layers[layer].children() if part is not keys.module)
    return next((part for part in parts if any(one is keys.module for one in part.modules())), None)


@contextmanager
def noted(anatomy: Anatomy, layers: Iterable[int], note: Callable[[int, Attended], None]) -> Iterator[None]:
    """Call `note` with what the attention of each of these layers has returned, inside this block: in models whose
    layers hand on the hidden state alone."""
    alone = not anatomy.mappings and not anatomy.handed
    with ExitStack() as stack:
        for layer in layers if alone else ():
            attention = attention_of(anatomy, layer)
            if attention is not None:
                stack.callback(attention.register_forward_hook(_noting(layer, note)).remove)
        yield


def _noting(layer: int, note: Callable[[int, Attended], None]) -> Callable[..., None]:
    def hook(module: nn.Module, args: Any, output: Any) -> None:
        if isinstance(output, Tensor):
            note(layer, output.clone())
        elif type(output) is tuple and output and isinstance(output[0], Tensor) and all(map(_is_passed_on, output[1:])):
            note(layer, (output[0].clone(), *(None for _ in output[1:])))

    return hook


def _is_passed_on(part: Any) -> bool:
    """True for weights [1, heads, positions, keys], and what else a layer does not compute with: DBRX's attention
    returns the MLP's input beside the residual."""
    return part is None or isinstance(part, Cache) or (isinstance(part, Tensor) and part.ndim == 4)


def handed_out(attended: Attended) -> Attended:
    """Return a copy for the layer, which may write into it."""
    if isinstance(attended, Tensor):
        return attended.clone()
    return tuple(None if part is None else part.clone() for part in attended)
