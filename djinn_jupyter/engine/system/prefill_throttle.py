"""How far the host runs ahead of the device. Knows no session and no model.

On CUDA a layer's call returns when its kernels are queued. A host that looks for mail between two layers would find it
there, and the answer, itself a kernel or a copy, would wait behind a queue that holds the rest of a long prefill.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, Final, Protocol

import torch

LAYERS_AHEAD: Final = 2  # one runs, one is queued behind it: the device has no pause


class Mark(Protocol):
    """A place in the device's queue."""

    def synchronize(self) -> Any:
        """Returns when the device has come there."""


class Pace:
    """`keep` is called between two layers and returns when the device is at most two layers behind. Where computing is
    over when its call returns, there is nothing to wait for and no `mark` to make."""

    def __init__(self, mark: Callable[[], Mark] | None) -> None:
        self._mark = mark
        self._marks: deque[Mark] = deque()

    @classmethod
    def of(cls, device: torch.device) -> Pace:
        return cls((lambda: _event(device)) if device.type == "cuda" else None)

    def keep(self) -> None:
        if self._mark is None:
            return
        self._marks.append(self._mark())
        if len(self._marks) > LAYERS_AHEAD:
            self._marks.popleft().synchronize()


def _event(device: torch.device) -> Mark:
    event = torch.cuda.Event()
    event.record(torch.cuda.current_stream(device))
    return event
