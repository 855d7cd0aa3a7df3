"""What the machine says about memory, beside what the books say. A figure that cannot be had is None."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

import psutil
import torch

from djinn_jupyter.engine.system.device_limit import free_on
from djinn_jupyter.machine import main_memory

STATUS: Final = Path("/proc/self/status")


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """Resident bytes of this process, its own ones and those mapped from files; bytes in use on the whole device by
    everybody, and its size; those that this process has reserved, and has not. What is of the device is None on the
    CPU, where the process says more."""

    process_bytes: int
    device_in_use: int | None
    device_total: int | None
    other_bytes: int | None = None
    reserved_bytes: int | None = None
    anonymous_bytes: int | None = None
    mapped_bytes: int | None = None

    @classmethod
    def read(cls, device: torch.device) -> Usage:
        free, total = torch.cuda.mem_get_info(device) if device.type == "cuda" else (None, None)
        in_use = None if free is None or total is None else total - free
        rss = int(psutil.Process().memory_info().rss)
        reserved = None if in_use is None else torch.cuda.memory_reserved(device)
        others = None if in_use is None or reserved is None else max(0, in_use - reserved)
        own, mapped = own_and_mapped()
        return cls(
            process_bytes=rss,
            device_in_use=in_use,
            device_total=total,
            other_bytes=others,
            reserved_bytes=reserved,
            anonymous_bytes=own,
            mapped_bytes=mapped,
        )


def own_and_mapped() -> tuple[int | None, int | None]:
    """Resident bytes of this process that are no part of a file, and those that are. None where the system does not
    tell them apart."""
    try:
        lines = STATUS.read_text().splitlines()
    except OSError:
        return None, None
    sizes = {
        name: int(rest.split()[0]) << 10 for name, _, rest in (line.partition(":") for line in lines if "kB" in line)
    }
    if "RssAnon" not in sizes:
        return None, None
    return sizes["RssAnon"] + sizes.get("RssShmem", 0), sizes.get("RssFile", 0)


def free_for_pages(device: torch.device, card_memory: int | None = None) -> int:
    """Bytes that pages may take when nobody said: what is free less a quarter for activations and others."""
    free = free_on(device, card_memory) if device.type == "cuda" else main_memory().available
    return int(free * 3 / 4)
