"""The agents that are there at once, and those on the device: read from the engine's page tables and statistics."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from djinn_evaluation.memory import on_device
from djinn_jupyter.api.engine import RemoteEngine
from djinn_jupyter.units import GIB
from djinn_jupyter.wire.nouns import EngineStatistics, SessionDescription

PERIOD_SECONDS = 0.05


@dataclass(slots=True)
class CrowdCounts:
    """The most of each over all samples. `on_device`: sessions with pages, all of them on the device; `running`: with a
    run under way."""

    samples: int = 0
    alive: int = 0
    on_device: int = 0
    off_device: int = 0
    running: int = 0
    pages_in_use: int = 0
    gigabytes: float = 0.0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, sessions: tuple[SessionDescription, ...], reading: EngineStatistics) -> None:
        with_pages = [one for one in sessions if one.pages]
        here = sum(one.residency == "resident" for one in with_pages)
        with self._lock:
            self.samples += 1
            self.alive = max(self.alive, len(with_pages))
            self.on_device = max(self.on_device, here)
            self.off_device = max(self.off_device, len(with_pages) - here)
            self.running = max(self.running, sum(one.state == "running" for one in sessions))
            self.pages_in_use = max(self.pages_in_use, sum(slab.pages - slab.pages_free for slab in reading.slabs))
            self.gigabytes = max(self.gigabytes, on_device(reading) / GIB)

    def fields(self) -> dict[str, Any]:
        return {
            "samples": self.samples,
            "alive_max": self.alive,
            "on_device_max": self.on_device,
            "off_device_max": self.off_device,
            "running_max": self.running,
            "pages_in_use_max": self.pages_in_use,
            "device_gb_max": self.gigabytes,
        }


@contextmanager
def counted(engine: RemoteEngine) -> Iterator[CrowdCounts]:
    """Count until the end of the block, twenty times a second."""
    found, ended = CrowdCounts(), threading.Event()
    errors: list[BaseException] = []

    def look() -> None:
        try:
            while not ended.wait(PERIOD_SECONDS):
                found.add(tuple(engine.sessions()), engine.statistics())
        except BaseException as error:  # noqa: BLE001  raised again below
            errors.append(error)

    thread = threading.Thread(target=look, name="djinn-experiment-concurrency", daemon=True)
    thread.start()
    try:
        yield found
    finally:
        ended.set()
        thread.join()
    if errors:
        raise errors[0]
