"""One counter for all sides of a comparison: the driver's of the whole device, or without a GPU the memory of the
side's own process. Asked from outside, so that no side counts itself."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import psutil

from djinn_evaluation.nvml import Card, Unseen, card
from djinn_jupyter.errors import DjinnError

PROCESS = "the process's own memory"


@dataclass(frozen=True, slots=True, kw_only=True)
class Counter:
    """`measured_by` names it for the result files."""

    measured_by: str
    _card: Card | None
    _process: psutil.Process

    def read(self) -> int:
        """Return the bytes at this moment."""
        return int(self._process.memory_info().rss) if self._card is None else self._card.bytes_in_use()


@contextmanager
def counter_of(device: str, pid: int) -> Iterator[Counter]:
    """Yield the counter of a torch device for the process that computes on it. DjinnError for a GPU that its driver
    does not show."""
    process = psutil.Process(pid)
    if not device.startswith("cuda"):
        yield Counter(measured_by=PROCESS, _card=None, _process=process)
        return
    try:
        with card(device) as seen:
            yield Counter(measured_by="NVML", _card=seen, _process=process)
    except Unseen as why:
        raise DjinnError(f"The memory of {device} cannot be read: {why}") from None
