"""What an engine is asked to be. Together these fields identify one engine process."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from djinn_jupyter.wire.registry import Identity


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """`model`: `demo`, a folder or a hub name. `dtype`, `device` and `attention` of None: the model's own dtype,
    the best device, sdpa. `device_memory` in bytes bounds weights and pages together; None takes what is free less
    headroom. `card_memory` in bytes imposes a GPU that small on the process, all it allocates counted; on the CPU
    it bounds weights and pages, where `device_memory` does not. `page_positions` of None follows the page-size rule
    of docs/design.md. `random_weights`: build the architecture of `model`'s config with weights drawn from
    `random_seed` instead of reading weights. `nap_seconds`: after so long without work the weights leave the
    device; None: 900 on CUDA, never on the CPU; `inf`: never. `host_memory` and `disk_memory` bound what is kept of
    sessions that have left the device, in bytes; 0 is none, None half of the memory that is available and four
    times that (but half of what is free) on disk. Bounds on main memory may be larger than it is: no more is taken
    than there is, in a container than that has. After `idle_swap_seconds` without use a session leaves.
    `data_folder`: where checkpoints, journals and the disk tier lie; None is `djinn` in the user's Jupyter data
    folder. `journal`: sessions outlive the process, and those of an earlier one come back."""

    model: str
    revision: str | None = None
    dtype: str | None = None
    device: str | None = None
    attention: str | None = None
    device_memory: int | None = None
    card_memory: int | None = None
    page_positions: int | None = None
    trust_remote_code: bool = False
    random_weights: bool = False
    random_seed: int = 0
    stops_kept: int = 64
    threads: int | None = None
    nap_seconds: float | None = None
    host_memory: int | None = None
    disk_memory: int | None = None
    idle_swap_seconds: float = 60.0
    data_folder: Path | None = None
    journal: bool = False

    @property
    def identity(self) -> Identity:
        """What tells this engine from others in the registry."""
        return Identity(
            model=self.model,
            revision=self.revision,
            dtype=self.dtype,
            device=self.device,
            attention=self.attention,
            random_weights=self.random_weights,
            random_seed=self.random_seed,
        )
