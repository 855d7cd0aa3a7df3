"""The plain model under hooks on its own modules: one forward for each thing asked, no code of an engine."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache

from tests.device import DEVICE
from tests.engine.desk import Outcome
from tests.engine.sweeps.plain_sweep import layers_of

Place = tuple[str, int]
Hook = Callable[[Tensor], Tensor]  # of [1, S, D]
Hooks = Mapping[Place, Sequence[Hook]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Names:
    """The modules of a family's layer: what the heads' outputs enter, what the MLP's features enter."""

    attention: str = "self_attn"
    mlp: str = "mlp"
    output: str = "o_proj"
    down: str | None = "down_proj"  # None where experts have several


class PlainHooks:
    """`hooks` change what stands at a place: `resid_pre` and `resid_post` of a layer, its `z`, its `mlp_post`."""

    def __init__(self, model: Any, names: Names) -> None:
        self.model, self.names = model, names
        self.layers = list(layers_of(model))
        config = model.config
        self.heads = getattr(config, "num_attention_heads", None) or config.n_head

    def logits(self, line: tuple[int, ...], hooks: Hooks | None = None) -> Tensor:
        """Return those of the last position, [V] in fp32."""
        with self._hooked(hooks or {}):
            return self._last(line, None)

    def all_logits(self, line: tuple[int, ...]) -> Tensor:
        """Return those of all positions, [S, V] in fp32 on the CPU."""
        with torch.inference_mode():
            return self.model(torch.tensor([line], device=DEVICE), use_cache=True).logits[0].float().cpu()

    def value(self, line: tuple[int, ...], place: Place, hooks: Hooks | None = None) -> Tensor:
        """Return what stands there in the line, [1, S, D]."""
        seen: list[Tensor] = []
        with self._hooked(hooks or {}), self._hooked({place: [lambda raw: seen.append(raw.clone()) or raw]}):
            self._last(line, None)
        return seen[0]

    def run(self, line: tuple[int, ...], new: int, hooks: Hooks | None = None) -> Outcome:
        """Generate greedily, hooks in place at every pass."""
        cache, fed, drawn = DynamicCache(config=self.model.config), line, list[int]()
        with self._hooked(hooks or {}):
            for _ in range(new):
                row = self._last(fed, cache)
                drawn.append(int(row.argmax()))
                fed = (drawn[-1],)
        return Outcome(tuple(drawn), row.cpu())

    def of_heads(self, heads: Sequence[int], change: Hook) -> Hook:
        """Change these heads' outputs [1, S, heads, features] and leave the others."""

        def changed(raw: Tensor) -> Tensor:
            each, made = raw.clone().unflatten(-1, (self.heads, -1)), change(raw).unflatten(-1, (self.heads, -1))
            each[..., list(heads), :] = made[..., list(heads), :]
            return each.flatten(-2)

        return changed

    def _last(self, fed: tuple[int, ...], cache: Any) -> Tensor:
        last = torch.tensor([len(fed) - 1], device=DEVICE)  # by an index, which leaves every layer all positions
        tokens = torch.tensor([fed], device=DEVICE)
        with torch.inference_mode():
            found = self.model(tokens, past_key_values=cache, use_cache=True, logits_to_keep=last)
        return found.logits[0, -1].float()

    @contextmanager
    def _hooked(self, hooks: Hooks) -> Iterator[None]:
        with ExitStack() as stack:
            for place, changes in hooks.items():
                for change in changes:
                    stack.callback(self._hook(place, change).remove)
            yield

    def _hook(self, place: Place, change: Hook) -> Any:
        point, number = place
        layer, names = self.layers[number], self.names
        if point == "resid_post":
            return layer.register_forward_hook(_leaving(change))
        entered = {
            "resid_pre": "",
            "z": f"{names.attention}.{names.output}",
            "mlp_post": f"{names.mlp}.{names.down}",
        }[point]
        return layer.get_submodule(entered).register_forward_pre_hook(_entering(change))


def _entering(change: Hook) -> Any:
    return lambda module, args: (change(args[0]), *args[1:])


def _leaving(change: Hook) -> Any:
    def hook(module: Any, args: Any, output: Any) -> Any:
        return (change(output[0]), *output[1:]) if isinstance(output, tuple) else change(output)

    return hook


def at(rows: Sequence[int], change: Hook) -> Hook:
    """Change these positions and leave the others."""

    def changed(raw: Tensor) -> Tensor:
        each = raw.clone()
        each[:, list(rows)] = change(raw)[:, list(rows)]
        return each

    return changed


def put(value: Tensor) -> Hook:
    return lambda raw: value.expand_as(raw)
