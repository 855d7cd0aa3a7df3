"""Memory sampled from outside: the device by NVML, the process's own, the engine's accounting (`accounted`)."""

from __future__ import annotations

import threading
import time
from bisect import bisect_left
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import pairwise

import psutil

from djinn_evaluation.nvml import Card, Unseen, card
from djinn_evaluation.serving import is_afar, repeated
from djinn_jupyter.api.engine import RemoteEngine
from djinn_jupyter.errors import DjinnError
from djinn_jupyter.units import GIB
from djinn_jupyter.wire.nouns import EngineStatistics

PROCESS = "the process's own memory"


@dataclass(frozen=True, slots=True, kw_only=True)
class Counter:
    """`measured_by` names it for the result files."""

    measured_by: str
    read: Callable[[], int]  # the bytes at this moment


@contextmanager
def counter_of(device: str, pid: int) -> Iterator[Counter]:
    """Yield the counter of a device and process. DjinnError for a GPU that its driver does not show."""
    process = psutil.Process(pid)
    if not device.startswith("cuda"):
        yield Counter(measured_by=PROCESS, read=lambda: int(process.memory_info().rss))
        return
    try:
        with card(device) as seen:
            yield Counter(measured_by="NVML", read=seen.bytes_in_use)
    except Unseen as why:
        raise DjinnError(f"The memory of {device} cannot be read: {why}") from None


PERIOD_SECONDS = 0.05
LEAST_CARD = 1 << 30  # bytes; CUDA's context and the kernels it loads fill a card of less by themselves


@dataclass(frozen=True, slots=True, kw_only=True)
class MemorySample:
    """Bytes at one moment (seconds since the sampling began). `device` is None without a GPU; `accounted` counts the
    bytes allocated on the device by the engine's accounting, `used` the same less free pages. `process` is the main
    memory of the engine's process, by its own statistics where it is reached over a line."""

    seconds: float
    device: int | None
    process: int | None
    accounted: int
    used: int
    card: int | None = None  # the memory of the device in all, by its driver

    @property
    def gigabytes(self) -> float:
        """The device's memory; without a GPU the engine's accounting: a process's memory includes its libraries."""
        return (self.accounted if self.device is None else self.device) / GIB


@dataclass(slots=True)
class Curve:
    """The samples of one period, oldest first; `look` reads one, `measured_by` names the device figure's source."""

    samples: list[MemorySample] = field(default_factory=list)
    look: Callable[[], MemorySample] | None = None
    measured_by: str = ""
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def take(self) -> MemorySample:
        """Take one more sample now and return it."""
        assert self.look is not None
        with self._lock:
            self.samples.append(self.look())
            return self.samples[-1]

    @property
    def peak_accounted(self) -> int:
        return max((sample.accounted for sample in self.samples), default=0)

    @property
    def by_driver(self) -> list[list[float]]:
        """Seconds and GiB of the whole device in each sample of its driver's; empty without a GPU."""
        return [[one.seconds, one.device / GIB] for one in self.samples if one.device is not None]

    def gigabytes(self) -> list[float]:
        return [sample.gigabytes for sample in self.samples]

    @property
    def least_rate(self) -> float:
        """Samples in the second that has the fewest; where the curve is shorter than a second, samples per second."""
        moments = [sample.seconds for sample in self.samples]
        span = moments[-1] - moments[0]
        if span < 1:
            return len(moments) / span if span else 0.0
        counts = [bisect_left(moments, moment + 1) - number for number, moment in enumerate(moments)]
        return float(min(count for count, moment in zip(counts, moments, strict=True) if moment + 1 <= moments[-1]))

    @property
    def longest_gap(self) -> float:
        """The most seconds between two consecutive samples."""
        moments = [sample.seconds for sample in self.samples]
        return max((later - earlier for earlier, later in pairwise(moments)), default=0.0)


def bytes_of(gigabytes: float | None) -> int | None:
    """Return a configuration's limit in bytes."""
    return None if gigabytes is None else int(gigabytes * GIB)


def limits_card(limit: int | None) -> bool:
    """Return whether a limit in bytes is a whole card's."""
    return limit is not None and limit >= LEAST_CARD


def options_for_limit(limit: int | None) -> dict[str, int | None]:
    """Return the engine's options for a limit of the card, or, where none is so small, of weights and pages."""
    return {"card_memory" if limits_card(limit) else "device_memory": limit}


def weights_on_device(reading: EngineStatistics) -> int:
    """Return the bytes of weights on the device by the engine's accounting."""
    return reading.weight_bytes if reading.weights is None else reading.weights.bytes_on_device


def on_device(reading: EngineStatistics) -> int:
    """Return the bytes on the device by the engine's accounting: weights and the memory of sessions."""
    slabs, weights = reading.slabs, weights_on_device(reading)
    if reading.budget is not None:
        return weights + reading.budget.bytes_taken
    return weights + sum(slab.bytes_allocated + slab.working_bytes for slab in slabs)


def in_use(reading: EngineStatistics) -> int:
    """Return the bytes in use on the device: `on_device` less free pages."""
    return on_device(reading) - sum(slab.pages_free * slab.page_bytes for slab in reading.slabs)


def bytes_of_pages(engine: RemoteEngine, positions: int) -> int:
    """Return the bytes of keys and values of so many positions, in whole pages."""
    return sum(-(-positions // g.page_positions) * g.page_bytes for g in engine.description.cache_groups)


def pages_in_use(reading: EngineStatistics) -> int:
    """Return the bytes of keys and values on the device: those of all pages that a session has."""
    return sum((slab.pages - slab.pages_free) * slab.page_bytes for slab in reading.slabs)


@contextmanager
def sampled(engine: RemoteEngine, begun: float | None = None) -> Iterator[Curve]:
    """Yield a curve sampled at 20 Hz in the block and at `take`, its seconds from `begun` (monotonic) or now."""
    assert engine.entry is not None
    begun = time.monotonic() if begun is None else begun
    seen: Card | None = None
    process = None if is_afar(engine) else psutil.Process(engine.entry.pid)
    stack = ExitStack()
    try:
        if process is None:
            raise Unseen("it is reached over a line")
        seen, measured_by = stack.enter_context(card(engine.description.device)), "NVML"
    except Unseen as why:
        on_gpu = engine.statistics().device_bytes_in_use is not None
        measured_by = f"the driver, asked by the engine ({why})" if on_gpu else f"the engine's accounting ({why})"

    def look() -> MemorySample:
        reading = engine.statistics()
        return MemorySample(
            seconds=time.monotonic() - begun,
            device=reading.device_bytes_in_use if seen is None else seen.bytes_in_use(),
            card=reading.device_bytes_total if seen is None else seen.bytes_in_all(),
            process=reading.process_bytes if process is None else int(process.memory_info().rss),
            accounted=on_device(reading),
            used=in_use(reading),
        )

    curve = Curve(measured_by=measured_by, look=look)
    with stack, repeated(curve.take, "djinn-experiment-memory", PERIOD_SECONDS, engine.channel):
        yield curve
