"""A GPU as NVIDIA's management library sees it, from outside of every process: memory in use, bytes over PCIe."""

from __future__ import annotations

import os
import statistics
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import pynvml

PERIOD_SECONDS = 0.05  # each reading of the link covers 20 ms of its own


class Unseen(Exception):
    """Raised where NVML does not show this GPU or counter, with the reason."""


@dataclass(frozen=True, slots=True)
class Card:
    """One GPU, while `card` is open."""

    _handle: Any

    def bytes_in_use(self) -> int:
        """Return the bytes in use by all processes together."""
        return int(self._memory().used)

    def bytes_in_all(self) -> int:
        """Return the card's memory in bytes."""
        return int(self._memory().total)

    def _memory(self) -> Any:
        """Return NVML's second version: the first counts the driver's own 0.5 GiB as used; old drivers have only it."""
        try:
            return pynvml.nvmlDeviceGetMemoryInfo(self._handle, version=pynvml.nvmlMemory_v2)
        except pynvml.NVMLError:
            pass
        try:
            return pynvml.nvmlDeviceGetMemoryInfo(self._handle)
        except pynvml.NVMLError as error:
            raise Unseen(f"NVML no longer tells this GPU's memory: {error}") from error

    def received(self) -> float:
        """Return the bytes a second received over PCIe. Raises Unseen."""
        try:
            kilobytes: int = pynvml.nvmlDeviceGetPcieThroughput(self._handle, pynvml.NVML_PCIE_UTIL_RX_BYTES)
        except pynvml.NVMLError as error:
            raise Unseen(f"NVML has no PCIe counter for this GPU: {error}") from error
        return 1000.0 * kilobytes

    def facts(self) -> dict[str, str | float | None]:
        """Return what a figure of this GPU depends on: driver, clocks, link, power; None where NVML has none."""
        asked: dict[str, Callable[[], Any]] = {
            "driver": pynvml.nvmlSystemGetDriverVersion,
            "sm_clock_mhz": lambda: pynvml.nvmlDeviceGetClockInfo(self._handle, pynvml.NVML_CLOCK_SM),
            "memory_clock_mhz": lambda: pynvml.nvmlDeviceGetClockInfo(self._handle, pynvml.NVML_CLOCK_MEM),
            "pcie_generation": lambda: pynvml.nvmlDeviceGetCurrPcieLinkGeneration(self._handle),
            "pcie_width": lambda: pynvml.nvmlDeviceGetCurrPcieLinkWidth(self._handle),
            "power_limit_watts": lambda: pynvml.nvmlDeviceGetEnforcedPowerLimit(self._handle) / 1000,
        }
        return {name: _told(ask) for name, ask in asked.items()}


def _told(ask: Callable[[], Any]) -> str | float | None:
    try:
        found = ask()
    except pynvml.NVMLError:
        return None
    return found.decode() if isinstance(found, bytes) else found


@contextmanager
def card(device: str) -> Iterator[Card]:
    """Yield the GPU of a torch device such as cuda:0. Raises Unseen."""
    kind, _, index = device.partition(":")
    if kind != "cuda":
        raise Unseen("no GPU")
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        raise Unseen(f"NVML does not answer: {error}") from error
    try:
        yield Card(_handle(nvml_name(int(index or 0), os.environ)))
    finally:
        pynvml.nvmlShutdown()


def nvml_name(index: int, environment: Mapping[str, str]) -> int | str:
    """Return NVML's index, or the UUID, of CUDA's visible GPU `index`: equal in PCI order and for cards of one kind."""
    visible = [name.strip() for name in environment.get("CUDA_VISIBLE_DEVICES", "").split(",") if name.strip()]
    name = visible[index] if index < len(visible) else str(index)
    return int(name) if name.isdigit() else name


def _handle(name: int | str) -> Any:
    try:
        if isinstance(name, int):
            return pynvml.nvmlDeviceGetHandleByIndex(name)
        return pynvml.nvmlDeviceGetHandleByUUID(name)
    except pynvml.NVMLError as error:
        raise Unseen(f"NVML knows no GPU {name}: {error}") from error


@dataclass(slots=True, kw_only=True)
class LinkCounter:
    """`samples` are in bytes a second; where there is no counter they are empty and `reason` says why."""

    reason: str = ""
    samples: list[float] = field(default_factory=list)

    @property
    def mean(self) -> float | None:
        return statistics.fmean(self.samples) if self.samples else None


@contextmanager
def counted(device: str) -> Iterator[LinkCounter]:
    """Sample the bytes that a device receives until the end of the block."""
    counter, ended = LinkCounter(), threading.Event()
    with ExitStack() as stack:
        try:
            seen = stack.enter_context(card(device))
        except Unseen as why:
            counter.reason = str(why)
            yield counter
            return
        thread = threading.Thread(target=_sample, args=(seen, counter, ended), name="djinn-nvml", daemon=True)
        thread.start()
        try:
            yield counter
        finally:
            ended.set()
            thread.join()


def _sample(seen: Card, counter: LinkCounter, ended: threading.Event) -> None:
    while not ended.wait(PERIOD_SECONDS):
        try:
            counter.samples.append(seen.received())
        except Unseen as why:
            counter.reason = str(why)
            return
