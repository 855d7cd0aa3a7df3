"""What the machine says about memory, beside what the books say. A figure that cannot be had is None."""

from __future__ import annotations

from dataclasses import dataclass

import psutil
import torch

from djinn_jupyter.engine.card import free_on
from djinn_jupyter.machine import main_memory


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """Resident bytes of this process; bytes in use on the whole device by everybody, and its size; those that this
    process has not reserved. The last three are None on the CPU, where the process says more."""

    process_bytes: int
    device_in_use: int | None
    device_total: int | None
    other_bytes: int | None = None

    @classmethod
    def read(cls, device: torch.device) -> Usage:
        free, total = torch.cuda.mem_get_info(device) if device.type == "cuda" else (None, None)
        in_use = None if free is None or total is None else total - free
        rss = int(psutil.Process().memory_info().rss)
        others = None if in_use is None else max(0, in_use - torch.cuda.memory_reserved(device))
        return cls(process_bytes=rss, device_in_use=in_use, device_total=total, other_bytes=others)


def free_for_pages(device: torch.device, card_memory: int | None = None) -> int:
    """Bytes that pages may take when nobody said: what is free less a quarter for activations and others."""
    free = free_on(device, card_memory) if device.type == "cuda" else main_memory().available
    return int(free * 3 / 4)
