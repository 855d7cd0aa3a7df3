"""Put the weights to sleep after a time without work, whether sessions are idle or stopped."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

import torch

from djinn_jupyter.engine.memory.weights.residence import Weights
from djinn_jupyter.errors import DjinnError
from djinn_jupyter.options import SettledOptions

log = logging.getLogger(__name__)
CUDA_SECONDS = 900.0


class IdleSleep:
    """The idle timer. The engine calls `tell` after work and when idle. By default 900 s on CUDA, else never."""

    def __init__(
        self,
        weights: Weights,
        options: SettledOptions,
        device: torch.device,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._weights, self._clock = weights, clock
        usual = CUDA_SECONDS if device.type == "cuda" else float("inf")
        self._seconds = usual if options.sleep_seconds is None else options.sleep_seconds
        self._worked = clock()

    def tell(self, busy: bool) -> None:
        if busy:
            self._worked = self._clock()
        elif self._clock() - self._worked >= self._seconds and not self._weights.asleep:
            self._sleep()

    def _sleep(self) -> None:
        try:
            took = self._weights.sleep()
        except DjinnError as error:
            log.info("No sleep, now or later: %s", error)
            self._seconds = float("inf")
        else:
            log.info("Without work for %.0f s: the weights have left the device in %.2f s", self._seconds, took)
