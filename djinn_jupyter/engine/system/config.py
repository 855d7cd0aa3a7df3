"""The configuration of an engine: its model, its options, and where it keeps files."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from pathlib import Path

from djinn_jupyter.engine.system.log import LogForm
from djinn_jupyter.settings import Identity, ModelOptions, SettledOptions
from djinn_jupyter.wire.nouns import GivenLimits


@dataclass(frozen=True, kw_only=True)
class EngineConfig(SettledOptions, ModelOptions):
    """The configuration of an engine. Amounts of memory in bytes; the engine finds out what None means:

    dtype, device, attention    the model's own, the best there is, sdpa
    device_memory               weights and pages together: what is free, less headroom
    card_memory                 all that the process allocates on the GPU; on the CPU it bounds weights and pages, where
                                `device_memory` does not
    host_memory, disk_memory    half of the available memory, and four times that (at most half of the free space); 0 is
                                no tier. No more main memory is taken than the machine or its container has
    page_positions              the page-size rule (memory/kv/geometry.py)
    sleep_seconds               900 on CUDA, never on the CPU; `inf` is never
    log                         that of the process, which the ranks of a split model have too
    data_folder                 for checkpoints, journals and the disk tier: `djinn` in the user's Jupyter data folder
    """

    data_folder: Path | None = None
    log: LogForm = field(default_factory=LogForm)
    no_journal: bool = True  # sessions outlive a process that asks for it (`engine/__main__.py`)

    @property
    def identity(self) -> Identity:
        """The fields that identify this engine in the registry."""
        return Identity(**{field.name: getattr(self, field.name) for field in dataclasses.fields(ModelOptions)})

    @property
    def limits(self) -> GivenLimits:
        """The limits as given, for clients on another machine."""
        return GivenLimits(**{name: getattr(self, name) for name in GivenLimits.__struct_fields__})
