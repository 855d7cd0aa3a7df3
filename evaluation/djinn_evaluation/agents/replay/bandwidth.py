"""The bandwidth of plain copies on this machine, so that a replay's times are those of a real link."""

from __future__ import annotations

import os
import statistics
import tempfile
from collections.abc import Callable
from pathlib import Path
from time import perf_counter
from typing import Final

import numpy

BYTES: Final = 256 * 2**20


def memory() -> float:
    """Return bytes/s of a copy from memory to memory: the link between host and device where the device is the CPU."""
    source = numpy.random.default_rng(0).integers(0, 255, BYTES, dtype=numpy.uint8)
    target = numpy.empty_like(source)
    return BYTES / _median(lambda: numpy.copyto(target, source))


def disk(folder: Path) -> tuple[float, float]:
    """Return bytes/s of writing a file (until it is on the disk) and of reading it back, not from the page cache."""
    content = os.urandom(BYTES // 4) * 4
    with tempfile.NamedTemporaryFile(dir=folder) as file:

        def write() -> None:
            os.pwrite(file.fileno(), content, 0)
            os.fsync(file.fileno())

        def read() -> None:
            if hasattr(os, "posix_fadvise"):
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            os.pread(file.fileno(), BYTES, 0)

        return BYTES / _median(write), BYTES / _median(read)


def _median(work: Callable[[], None]) -> float:
    times = []
    for _ in range(4):
        begun = perf_counter()
        work()
        times.append(perf_counter() - begun)
    return statistics.median(times[1:])
