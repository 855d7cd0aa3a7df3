"""Norms with their scale held: y = scale * gain * (x, less its mean where the norm subtracts it) + shift, where each
position keeps the scale that it had.

Which modules are looked at follows from their names, which are norms from arithmetic: one whose output is not so made
of its input is left as it is. Shapes: ... positions (and heads), D features.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor, nn

from djinn_jupyter.methods.attribution.engine.line import recording

ALIKE: Final = {torch.float32: 1e-4, torch.float64: 1e-6}  # of the largest entry
ALIKE_IN_16_BITS: Final = 2e-2
CENTRED: Final = 1e-2  # of the output: what is left of equal features once their mean is subtracted


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FrozenNorm:
    """A norm as it was at one value; `scale` has one entry for each of its positions."""

    gain_D: Tensor
    shift_D: Tensor
    scale: Tensor
    centred: bool

    @classmethod
    def at(cls, norm: nn.Module, x: Tensor, y: Tensor) -> FrozenNorm | None:
        """Return the norm as it made y of x; None where it is none."""

        def made(value_D: Tensor) -> Tensor:
            found: Tensor = norm.forward(value_D.expand(x.shape[:-1] + value_D.shape).to(x.dtype))
            return found.reshape(-1, x.shape[-1])[0].float()

        size = x.float().square().mean().sqrt().clamp_min(1e-6)
        shift_D = made(torch.zeros_like(x.reshape(-1, x.shape[-1])[0]))
        even = torch.ones_like(shift_D)
        centred = bool((made(even * size) - shift_D).abs().max() < CENTRED * y.float().abs().max())
        if centred:
            even = 1.0 - 2.0 * (torch.arange(len(even), device=x.device) % 2)
            even = even - even.mean()
        gain_D = (made(even * size) - shift_D) / even
        direction = gain_D * _centred(x.float(), centred)
        within = y.float() - shift_D
        scale = (within * direction).sum(-1, keepdim=True) / direction.square().sum(-1, keepdim=True).clamp_min(1e-30)
        allowed = ALIKE.get(y.dtype, ALIKE_IN_16_BITS) * y.float().abs().max()
        if (within - scale * direction).abs().max() > allowed:
            return None
        return cls(gain_D=gain_D, shift_D=shift_D, scale=scale, centred=centred)

    def of(self, x: Tensor) -> Tensor:
        return (self.scale * (self.gain_D * _centred(x.float(), self.centred)) + self.shift_D).to(x.dtype)


def _centred(x: Tensor, centred: bool) -> Tensor:
    return x - x.mean(-1, keepdim=True) if centred else x


class FrozenNorms:
    """The norms of a model that are held while one line's affine part is computed."""

    def __init__(self) -> None:
        self._found: dict[nn.Module, FrozenNorm | None] = {}

    @contextmanager
    def noted(self, modules: Iterable[nn.Module]) -> Iterator[None]:
        """Note each norm among the modules as it computes inside this block; one that runs twice is left as it is."""

        def note(module: nn.Module, args: tuple[Any, ...], y: Any) -> None:
            again = module in self._found
            alone = len(args) == 1 and isinstance(args[0], Tensor) and isinstance(y, Tensor)
            with recording(False):
                found = FrozenNorm.at(module, args[0].detach(), y.detach()) if alone and not again else None
            self._found[module] = found

        with _hooked(modules, note):
            yield

    @contextmanager
    def held(self, modules: Iterable[nn.Module]) -> Iterator[None]:
        """Have each norm that was noted compute with its scale held inside this block."""

        def hold(module: nn.Module, args: tuple[Any, ...], y: Any) -> Tensor | None:
            found = self._found.get(module)
            return None if found is None else found.of(args[0])

        with _hooked(modules, hold):
            yield


@contextmanager
def _hooked(modules: Iterable[nn.Module], hook: Callable[..., Any]) -> Iterator[None]:
    with ExitStack() as stack:
        for module in modules:
            stack.callback(module.register_forward_hook(hook).remove)
        yield


def norms_in(module: nn.Module, but: nn.Module | None = None) -> list[nn.Module]:
    """Return the modules within one that may be norms, but for those within another."""
    left_out = set() if but is None else set(but.modules())
    return [one for one in module.modules() if "norm" in type(one).__name__.lower() and one not in left_out]
