"""What the process has of main memory and of the device beyond what the engine's books say. Measures; decides nothing.

Of a model of 1.0 GiB served within 512 MiB on the CPU the process had 1,861 MB: 1,143 mapped from the model file, which
the system takes back when it needs them, and 717 of its own. Of those 405 were weights by the books, 255 Python, torch
and transformers before anything was loaded, and the rest what allocators kept of loading and of the self-test.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

from djinn_jupyter.engine.memory.budget import Budget
from djinn_jupyter.engine.memory.offload.tiers import Tiers
from djinn_jupyter.engine.memory.weights.flat import raw_bytes
from djinn_jupyter.engine.memory.weights.mapped import bytes_in_memory
from djinn_jupyter.engine.memory.weights.parameters import weights_of
from djinn_jupyter.engine.system.device import Usage
from djinn_jupyter.wire.holdings import ProcessMemory
from djinn_jupyter.wire.nouns import WeightsStatistics


@dataclass(frozen=True, slots=True, kw_only=True)
class Footprint:
    """Whose main memory is whose. `runtime` is what the process had of its own before a model was loaded, `weights`
    what resident weights take of it; both None where the system does not tell."""

    device: torch.device
    runtime: int | None
    weights: int | None

    def reading(self, usage: Usage, weights: WeightsStatistics, budget: Budget, tiers: Tiers) -> ProcessMemory:
        booked = self._booked(weights, budget, tiers)
        beyond = None
        if usage.anonymous_bytes is not None and self.runtime is not None:
            beyond = max(0, usage.anonymous_bytes - self.runtime - booked)
        reserved = usage.reserved_bytes
        return ProcessMemory(
            anonymous_bytes=usage.anonymous_bytes,
            mapped_bytes=usage.mapped_bytes,
            booked_bytes=booked,
            runtime_bytes=self.runtime,
            beyond_bytes=beyond,
            device_beyond_bytes=None if reserved is None else max(0, reserved - weights.bytes_on_device - budget.taken),
        )

    def _booked(self, weights: WeightsStatistics, budget: Budget, tiers: Tiers) -> int:
        """What the books say lies in main memory and is no part of a file."""
        in_tiers = tiers.host_bytes
        held = weights.bytes_held_on_host or 0
        if self.device.type != "cpu":
            return in_tiers + held
        streamed = weights.residency != "resident"
        return in_tiers + budget.taken + held + (weights.bytes_on_device if streamed else self.weights or 0)


def footprint_of(model: nn.Module, device: torch.device, runtime: int | None) -> Footprint:
    """For a model whose weights are where they will be: which of them are part of a file is asked once."""
    own = bytes_in_memory(raw_bytes(weight.tensor) for weight in weights_of(model) if weight.tensor.is_contiguous())
    return Footprint(device=device, runtime=runtime, weights=own)
