"""Limit how far the host runs ahead of the device. Knows no session and no model.

On CUDA a layer's call returns when its kernels are queued. A host that checks for requests between two layers would
find one, and the answer, itself a kernel or a copy, would wait in the queue behind the rest of a long prefill.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol

import torch

LAYERS_AHEAD: Final = 2  # one runs and one is queued behind it, so the device never idles


class Mark(Protocol):
    """A position in the device's queue."""

    def synchronize(self) -> Any:
        """Return once the device has reached the position."""


class PrefillThrottle:
    """Call `keep` between two layers; it returns once the device is at most two layers behind. Where a call returns
    only after its computing is done (the CPU), `mark` is None and `keep` returns at once."""

    def __init__(self, mark: Callable[[], Mark] | None) -> None:
        self._mark = mark
        self._marks: deque[Mark] = deque()

    @classmethod
    def of(cls, *devices: torch.device) -> PrefillThrottle:
        return cls((lambda: _Events(tuple(map(_event, devices)))) if devices[0].type == "cuda" else None)

    def keep(self) -> None:
        if self._mark is None:
            return
        self._marks.append(self._mark())
        if len(self._marks) > LAYERS_AHEAD:
            self._marks.popleft().synchronize()


class _Events:
    """A position in the queue of each device."""

    def __init__(self, events: Sequence[Mark]) -> None:
        self._events = events

    def synchronize(self) -> None:
        for event in self._events:
            event.synchronize()


def _event(device: torch.device) -> Mark:
    event = torch.cuda.Event()
    event.record(torch.cuda.current_stream(device))
    return event
