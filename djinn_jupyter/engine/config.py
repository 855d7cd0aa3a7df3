"""The configuration of an engine. Together these fields identify one engine process."""

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
    (docs/design.md, 68). `random_weights`: build the architecture of `model`'s config with weights drawn from
    `random_seed` instead of reading weights. `nap_seconds`: seconds without work after which the weights sleep (leave
    the device); None: 900 on CUDA, never on the CPU; `inf`: never. `host_memory` and `disk_memory` bound the tiers for
    sessions that have left the device, in bytes; 0: no tier; None: half of the available memory, and four times that
    (at most half of the free space) on disk. Bounds on main memory may exceed it: no more is taken than the machine or
    container has. After `idle_swap_seconds` without use a session is swapped out. `data_folder`: the folder of
    checkpoints, journals and the disk tier; None is `djinn` in the user's Jupyter data folder. `journal`: sessions
    outlive the process, and those of an earlier one come back."""

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
        """The fields that tell this engine from others in the registry."""
        return Identity(
            model=self.model,
            revision=self.revision,
            dtype=self.dtype,
            device=self.device,
            attention=self.attention,
            random_weights=self.random_weights,
            random_seed=self.random_seed,
        )
