"""The process's main and device memory beyond the engine's own accounting. Measures; decides nothing.

With a model of 1.0 GiB served within 512 MiB on the CPU the process had 1,861 MB: 1,143 mapped from the model file,
which the system takes back when it needs them, and 717 of its own. Of the 717, 405 were accounted weights, 255 Python,
torch and transformers before anything was loaded, and the rest kept by allocators from loading and the self-test.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

from djinn_jupyter.engine.memory.offload.tiers import Tiers
from djinn_jupyter.engine.memory.weights.flat import raw_bytes
from djinn_jupyter.engine.memory.weights.mapped import bytes_in_memory
from djinn_jupyter.engine.memory.weights.parameters import weights_of
from djinn_jupyter.engine.system.device import Usage
from djinn_jupyter.wire.holdings import ProcessMemory
from djinn_jupyter.wire.nouns import WeightsStatistics


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessFootprint:
    """The parts of the process's own main memory. `runtime` are the bytes it had before a model was loaded, `weights`
    the bytes of resident weights; both None where the system does not tell."""

    device: torch.device
    runtime: int | None
    weights: int | None

    def reading(self, usage: Usage, weights: WeightsStatistics, taken: int, tiers: Tiers) -> ProcessMemory:
        """Return the parts; `taken` are the bytes that sessions hold on all devices."""
        accounted = self._accounted(weights, taken, tiers)
        beyond = None
        if usage.anonymous_bytes is not None and self.runtime is not None:
            beyond = max(0, usage.anonymous_bytes - self.runtime - accounted)
        reserved = usage.reserved_bytes
        return ProcessMemory(
            anonymous_bytes=usage.anonymous_bytes,
            mapped_bytes=usage.mapped_bytes,
            accounted_bytes=accounted,
            runtime_bytes=self.runtime,
            beyond_bytes=beyond,
            device_beyond_bytes=None if reserved is None else max(0, reserved - weights.bytes_on_device - taken),
        )

    def _accounted(self, weights: WeightsStatistics, taken: int, tiers: Tiers) -> int:
        """Return the accounted bytes in main memory that are not mapped from a file."""
        in_tiers = tiers.host_bytes
        held = weights.bytes_held_on_host or 0
        if self.device.type != "cpu":
            return in_tiers + held
        streamed = weights.residency != "resident"
        return in_tiers + taken + held + (weights.bytes_on_device if streamed else self.weights or 0)


def footprint_of(model: nn.Module, device: torch.device, runtime: int | None) -> ProcessFootprint:
    """Return the footprint of a model whose weights are in place. Which of them are mapped from a file is asked
    once."""
    own = bytes_in_memory(raw_bytes(weight.tensor) for weight in weights_of(model) if weight.tensor.is_contiguous())
    return ProcessFootprint(device=device, runtime=runtime, weights=own)
