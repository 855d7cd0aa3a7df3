"""A low-rank product beside linear modules (LoRA, Hu et al. 2021): added to what each makes, for the time of a pass.

The order of operations and the dtypes are PEFT's (`tuners/lora/layer.py`), so that the sums round alike. Between passes
nothing of the model is changed. Shapes: I inputs, O outputs, R rank.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

from torch import Tensor, nn
from torch.nn import functional

from djinn_jupyter.errors import UsageError
from djinn_jupyter.wire.adapters import AdapterIdentity


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LowRank:
    """The product beside the module at `path`, in fp32 also where the model computes in 16 bits."""

    path: str
    module: nn.Module
    down_RI: Tensor
    up_OR: Tensor
    factor: float

    def beside(self, base: Callable[..., Tensor], x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        """Return what `base` makes of x with the product added, in the dtype of what it makes."""
        made = base(x, *args, **kwargs)
        product = functional.linear(functional.linear(x.to(self.down_RI.dtype), self.down_RI), self.up_OR)
        return (made + product * self.factor).to(made.dtype)


@dataclass(slots=True, kw_only=True, eq=False, weakref_slot=True)
class HeldAdapter:
    """An adapter that sessions refer to. `parts` are None where it is not there, and `missing` says so."""

    identity: AdapterIdentity
    parts: Sequence[LowRank] | None = None
    bytes_held: int = 0
    missing: str | None = None

    @property
    def name(self) -> str:
        return self.identity.name

    @property
    def present(self) -> Sequence[LowRank]:
        """The products. Raises UsageError where they are missing."""
        if self.parts is None:
            raise UsageError(self.missing or "The adapter is not there yet.")
        return self.parts

    def arrive(self, parts: Sequence[LowRank], size: int) -> None:
        """Be there from now on."""
        self.parts, self.bytes_held, self.missing = parts, size, None

    def let_go(self, missing: str) -> None:
        """Be missing from now on, for the reason given."""
        self.parts, self.bytes_held, self.missing = None, 0, missing

    @contextmanager
    def on(self) -> Iterator[None]:
        """Have the model's modules compute with it inside this block."""
        parts = self.present
        before = [vars(part.module).get("forward") for part in parts]
        try:
            for part in parts:
                vars(part.module)["forward"] = partial(part.beside, part.module.forward)
            yield
        finally:
            for part, forward in zip(parts, before, strict=True):
                _restore(part.module, forward)


def _restore(module: nn.Module, forward: Any) -> None:
    """Give a module back the forward that it had as its own, or its class's."""
    if forward is None:
        vars(module).pop("forward", None)
    else:
        vars(module)["forward"] = forward
