"""The tiers of an engine, from its configuration and the machine's memory."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Final

import torch
from jupyter_core.paths import jupyter_data_dir

from djinn_jupyter.engine.config import EngineConfig
from djinn_jupyter.engine.memory.growth import Growth
from djinn_jupyter.engine.memory.offload.disk import DiskTier
from djinn_jupyter.engine.memory.offload.host import HostTier, Memory
from djinn_jupyter.engine.memory.offload.page_file import DirectFile
from djinn_jupyter.engine.system.huge_pages import pageable
from djinn_jupyter.engine.system.pinned import pinned_if_allowed
from djinn_jupyter.errors import StorageFailed
from djinn_jupyter.fsync import make_folder
from djinn_jupyter.machine import main_memory
from djinn_jupyter.wire.own import ELSEWHERE

FOLDER: Final = "djinn"


def open_host(config: EngineConfig, device: torch.device, growth: Growth | None = None) -> HostTier | None:
    """Return the host tier, None where the configuration has none. It grows as far as `growth` allows."""
    limit = _host_limit(config)
    if not limit:
        return None
    return HostTier(limit, memory=memory_of(device), growth=growth)


def open_disk(config: EngineConfig, device: torch.device, kept: Path | None = None) -> DiskTier | None:
    """Return the disk tier, None where the configuration has none. With `kept` its file stays under that name; else it
    has none. Raises StorageFailed."""
    folder = config.data_folder or Path(jupyter_data_dir()) / FOLDER
    if config.disk_memory == 0:
        return None
    try:
        make_folder(folder)
        limit = config.disk_memory
        if limit is None:
            limit = min(4 * (_host_limit(config) or main_memory().total), shutil.disk_usage(folder).free // 2)
        file = DirectFile(kept or folder / f"pages-{os.getpid()}-{id(config):x}", keep=kept is not None)
    except OSError as error:
        raise StorageFailed(
            f"The disk tier cannot be made in {folder} ({error.strerror or error}): {ELSEWHERE}, or start the "
            "engine with --disk-memory 0 (in Python disk_memory=0) to go on without it."
        ) from error
    return DiskTier(file, limit, memory=memory_of(device))


def memory_of(device: torch.device) -> Memory:
    return pinned_if_allowed if device.type == "cuda" else pageable


def _host_limit(config: EngineConfig) -> int:
    return main_memory().available // 2 if config.host_memory is None else config.host_memory
