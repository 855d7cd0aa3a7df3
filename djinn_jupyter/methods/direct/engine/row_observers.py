"""Observers of what each module adds to one row of the residual as a pass goes by, and the check of their sum.

Shapes: D features of the residual, H heads, F neurons.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

import torch
from torch import Tensor

from djinn_jupyter.engine.interventions.site_value import SiteValue
from djinn_jupyter.engine.model.hooks.taps import Tap
from djinn_jupyter.engine.session.runtime import Runtime
from djinn_jupyter.engine.system.to_home import to_home
from djinn_jupyter.errors import UnknownSite

POINTS: Final = ("attn_out", "mlp_out")
UNEXPLAINED: Final = {torch.float32: 1e-4, torch.float64: 1e-4}  # of the residual: more than rounding
UNEXPLAINED_IN_16_BITS: Final = 0.05


@dataclass(slots=True, kw_only=True)
class RowObserver:
    """Records one row of a value as the pass goes by: [1, D]; with `by_head` what each head adds, [H, D]; with
    `by_neuron` what all of them add, [1, D], and their activations `neurons_F`."""

    tap: Tap
    row: int
    point: str
    by_head: bool = False
    by_neuron: bool = False
    values: list[Tensor] = field(default_factory=list)
    bias: Tensor | None = None
    neurons_F: Tensor | None = None

    def mark(self) -> Callable[[], None]:
        """Return a no-op: a value seen again replaces the earlier one."""
        return lambda: None

    def observe(self, site_value: SiteValue) -> None:
        if self.by_head:
            self.values, self.bias = _projected(self.tap, site_value.raw, self.row)
        elif self.by_neuron:
            self.neurons_F = site_value.value[self.row].detach().clone()
            self.bias = _mapped(self.tap, torch.zeros_like(self.neurons_F))
            self.values = [_mapped(self.tap, self.neurons_F) - self.bias]
        else:
            self.values = [site_value.value[self.row].detach().clone()]

    def bring(self, home: torch.device) -> None:
        """Move what was recorded to `home`."""
        self.values = [to_home(value, home) for value in self.values]
        self.bias = None if self.bias is None else to_home(self.bias, home)

    @property
    def of_bias(self) -> str:
        """The name of the point that the bias of its map is."""
        return "mlp_bias" if self.by_neuron else "bias"


def watched(runtime: Runtime, layer: int, row: int, *, heads: bool, neurons: bool) -> Iterator[RowObserver]:
    """Yield observers of the values that layer `layer` adds to the residual, by module. Raises UnknownSite where its
    heads or neurons add nothing of their own."""
    for point in POINTS:
        found = runtime.forward.anatomy.taps[f"{point}_post", layer]
        added = found if isinstance(found, Tap) else runtime.forward.anatomy.taps[point, layer]
        if isinstance(added, str):
            continue  # a layer without that module; what is missing in the sum is found afterwards
        if heads and point == "attn_out":
            yield RowObserver(
                tap=_heads_tap(runtime, layer, normed=isinstance(found, Tap)), row=row, point="z", by_head=True
            )
        elif neurons and point == "mlp_out":
            tap = _neurons_tap(runtime, layer, normed=isinstance(found, Tap))
            yield RowObserver(tap=tap, row=row, point="mlp_post", by_neuron=True)
        else:
            yield RowObserver(tap=added, row=row, point=point)


def _heads_tap(runtime: Runtime, layer: int, *, normed: bool) -> Tap:
    tap = runtime.forward.anatomy.taps["z", layer]
    if normed or isinstance(tap, str) or tap.heads is None or tap.module is None:
        why = "a norm stands between attention and the residual" if normed else _why_not_by_head(tap)
        raise UnknownSite(f"The heads of layer {layer} add nothing of their own to the residual: {why}.")
    return tap


def _neurons_tap(runtime: Runtime, layer: int, *, normed: bool) -> Tap:
    tap = runtime.forward.anatomy.taps["mlp_post", layer]
    if normed or isinstance(tap, str) or tap.module is None:
        why = "a norm stands between the MLP and the residual" if normed else str(tap)
        raise UnknownSite(f"The neurons of layer {layer} add nothing of their own to the residual: {why}.")
    adapter = runtime.forward.adapter
    if adapter is not None and any(part.module is tap.module for part in adapter.present):
        raise UnknownSite(
            f"The neurons of layer {layer} write through a map that the adapter {adapter.name} changes: they are not "
            "told apart; attribute to MLPs, without neurons."
        )
    return tap


def _why_not_by_head(tap: Tap | str) -> str:
    return tap if isinstance(tap, str) else "what its attention gives to the output map is not divided into heads"


def _projected(tap: Tap, raw: Tensor, row: int) -> tuple[list[Tensor], Tensor]:
    """Return each head's addition through the output map, and the map's bias; bypasses the hooks that called this."""
    module: Any = tap.module
    value = tap.read(raw)
    nothing = torch.zeros_like(value)
    empty = tap.write(torch.zeros_like(raw), nothing)

    def mapped(given: Tensor) -> Tensor:
        made: Tensor = module.forward(given)  # with the adapter of the pass
        return made.reshape(-1, made.shape[-1])[row].detach().clone()

    bias = mapped(empty)
    alone = []
    for head in range(tap.heads or 0):
        one = nothing.clone()
        one[row, head] = value[row, head]
        alone.append(mapped(tap.write(empty, one)) - bias)
    return alone, bias


def _mapped(tap: Tap, value_F: Tensor) -> Tensor:
    """Return what the module that is given a value makes of it, [D]; bypasses the hooks that called this."""
    module: Any = tap.module
    made: Tensor = module.forward(value_F[None, None])
    return made[0, 0].detach().clone()


def require_whole(x_D: Tensor, seen: list[RowObserver]) -> None:
    """Raise UnknownSite where the residual is not the sum of the values seen: the family scales or adds something
    else."""
    parts = [value for one in seen for value in (*one.values, one.bias) if value is not None]
    total = sum((part.to(torch.float32) for part in parts), torch.zeros_like(x_D).float())
    size = float((x_D.float() - total).norm() / x_D.float().norm())
    if size > UNEXPLAINED.get(x_D.dtype, UNEXPLAINED_IN_16_BITS):
        raise UnknownSite(
            "The outputs of attention and MLP do not sum to the residual of this model, so they explain no logit "
            f"({size:.2%} of it is something else)."
        )
