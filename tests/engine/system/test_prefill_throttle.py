"""The host waits for the device between two layers of a prefill, and nowhere else. The device is a list of marks."""

from __future__ import annotations

import torch

from djinn_jupyter.engine.system.device import LAYERS_AHEAD, PrefillThrottle
from tests.engine.desk import desk_of, tokens


class Queue:
    """Marks are numbered as they are made; `passed` are those that were waited for."""

    def __init__(self) -> None:
        self.made = 0
        self.passed: list[int] = []

    def mark(self) -> _Mark:
        self.made += 1
        return _Mark(self, self.made)


class _Mark:
    def __init__(self, queue: Queue, number: int) -> None:
        self._queue, self._number = queue, number

    def synchronize(self) -> None:
        self._queue.passed.append(self._number)


def test_the_device_is_two_layers_behind_at_most() -> None:
    queue = Queue()
    throttle = PrefillThrottle(queue.mark)
    for layer in range(1, 10):
        throttle.keep()
        assert queue.made - len(queue.passed) <= LAYERS_AHEAD
        assert queue.passed == list(range(1, layer + 1 - LAYERS_AHEAD))


def test_on_the_cpu_there_is_nothing_to_wait_for() -> None:
    throttle = PrefillThrottle.of(torch.device("cpu"))
    throttle.keep()
    assert throttle._mark is None


def test_it_is_kept_in_a_prefill_between_all_layers_and_not_in_decode_steps() -> None:
    desk = desk_of("llama")
    queue = Queue()
    desk.engine.scheduler.throttle = PrefillThrottle(queue.mark)
    desk.open()
    desk.run(tokens(13), 0)
    between = desk.layers - 1
    assert queue.made == between
    assert queue.passed == list(range(1, between + 1 - LAYERS_AHEAD))
    desk.run(tokens(13), 3)
    assert queue.made == 2 * between  # the prompt again, and three steps of one token
