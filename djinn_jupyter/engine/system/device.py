"""Memory use as the machine reports it, beside the engine's own accounting. A figure that cannot be read is None."""

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
    """Resident bytes of this process, in all, anonymous, and mapped from files; bytes in use on the whole device by all
    processes, and its size; of those in use, the bytes this process has reserved, and the others. The device's figures
    are None on the CPU, where the process's figures say more."""

    process_bytes: int
    device_in_use: int | None
    device_total: int | None
    other_bytes: int | None = None
    reserved_bytes: int | None = None
    anonymous_bytes: int | None = None
    mapped_bytes: int | None = None

    @classmethod
    def read(cls, *devices: torch.device) -> Usage:
        """Read the use of the devices, all together."""
        cards = [torch.cuda.mem_get_info(device) for device in devices if device.type == "cuda"]
        total = sum(size for _, size in cards) if cards else None
        in_use = None if total is None else total - sum(free for free, _ in cards)
        reserved = None if in_use is None else sum(map(torch.cuda.memory_reserved, devices))
        others = None if in_use is None or reserved is None else max(0, in_use - reserved)
        own, mapped = own_and_mapped()
        return cls(
            process_bytes=int(psutil.Process().memory_info().rss) if own is None or mapped is None else own + mapped,
            device_in_use=in_use,
            device_total=total,
            other_bytes=others,
            reserved_bytes=reserved,
            anonymous_bytes=own,
            mapped_bytes=mapped,
        )


def own_and_mapped() -> tuple[int | None, int | None]:
    """Return this process's resident bytes that belong to no file, and those that do. None where the system does not
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


def require_alive(device: torch.device) -> None:
    """Wait for the device. Raises RuntimeError where it does no more work for this process: after a fault within a
    kernel every call of CUDA fails until the process ends."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def free_for_pages(device: torch.device, card_memory: int | None = None) -> int:
    """Return the default limit for pages in bytes: free memory less a quarter for activations and other programs."""
    free = free_on(device, card_memory) if device.type == "cuda" else main_memory().available
    return int(free * 3 / 4)
