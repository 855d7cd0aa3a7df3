"""NVML's own counter of what a GPU received over PCIe, sampled beside ours, read through the driver's library."""

from __future__ import annotations

import ctypes
import statistics
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

LIBRARY = "libnvidia-ml.so.1"
RECEIVED = 1  # NVML_PCIE_UTIL_RX_BYTES
PERIOD_SECONDS = 0.05  # each reading covers 20 ms of its own


@dataclass(slots=True, kw_only=True)
class LinkCounter:
    """`samples` in bytes a second; none, and the `reason`, where there is no counter."""

    reason: str = ""
    samples: list[float] = field(default_factory=list)

    @property
    def mean(self) -> float | None:
        return statistics.fmean(self.samples) if self.samples else None


@contextmanager
def counted(device: str | None) -> Iterator[LinkCounter]:
    """Sample until the end of the block. `device` such as cuda:0, None for no GPU."""
    counter, ended = LinkCounter(), threading.Event()
    reading = _open(device, counter)
    if reading is None:
        yield counter
        return
    library, handle = reading
    thread = threading.Thread(target=_sample, args=(library, handle, counter, ended), name="djinn-nvml", daemon=True)
    thread.start()
    try:
        yield counter
    finally:
        ended.set()
        thread.join()
        library.nvmlShutdown()


def _open(device: str | None, counter: LinkCounter) -> tuple[ctypes.CDLL, ctypes.c_void_p] | None:
    """NVML counts its devices as the machine does; where CUDA_VISIBLE_DEVICES hides some, the numbers may differ."""
    if device is None:
        counter.reason = "no GPU"
        return None
    try:
        library = ctypes.CDLL(LIBRARY)
    except OSError:
        counter.reason = f"{LIBRARY} is not on this machine"
        return None
    handle, index = ctypes.c_void_p(), int(device.partition(":")[2] or 0)
    if library.nvmlInit_v2() or library.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(handle)):
        counter.reason = "NVML does not answer"
        return None
    return library, handle


def _sample(library: ctypes.CDLL, handle: ctypes.c_void_p, counter: LinkCounter, ended: threading.Event) -> None:
    kilobytes = ctypes.c_uint()
    while not ended.wait(PERIOD_SECONDS):
        if library.nvmlDeviceGetPcieThroughput(handle, RECEIVED, ctypes.byref(kilobytes)):
            counter.reason = "NVML has no PCIe counter for this GPU"
            return
        counter.samples.append(1000.0 * kilobytes.value)
