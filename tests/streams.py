"""CUDA's streams and events without a GPU: queued work happens later, in any order that the events allow.

Every copy, and any other work of a test, is put at the end of the current stream's queue. Queues are worked off by
chance, one step of any stream at a time, and only as far as a caller waits. So work not ordered by an event happens
in the wrong order sooner or later.
"""

from __future__ import annotations

import random
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import Tensor

CUDA = torch.device("cuda", 0)


@dataclass(eq=False)
class Event:
    """Passed when `passed` has reached the number of times that it was recorded, as of when a caller began to wait."""

    enable_timing: bool = False
    recorded: int = 0
    passed: int = 0
    gpu: Gpu = field(kw_only=True)

    def record(self, stream: Stream) -> None:
        self.recorded += 1
        number = self.recorded

        def reach() -> None:
            self.passed = number

        stream.steps.append(Step(reach))

    def query(self) -> bool:
        return self.passed == self.recorded

    def synchronize(self) -> None:
        self.gpu.work_until(self.query)

    def elapsed_time(self, other: Event) -> float:
        assert all(event.enable_timing and event.query() for event in (self, other))
        return 1.0


@dataclass(eq=False)
class Step:
    do: Callable[[], None]
    may_begin: Callable[[], bool] = lambda: True


@dataclass(eq=False)
class Stream:
    gpu: Gpu
    steps: deque[Step] = field(default_factory=deque)

    def wait_event(self, event: Event) -> None:
        number = event.recorded
        self.steps.append(Step(lambda: None, lambda: event.passed >= number))

    def synchronize(self) -> None:
        self.gpu.work_until(lambda: not self.steps)


class Gpu:
    """`by_chance` chooses which stream goes on."""

    def __init__(self, by_chance: random.Random) -> None:
        self.by_chance = by_chance
        self.computing = Stream(self)
        self.streams = [self.computing]
        self._current = threading.local()

    @property
    def current(self) -> Stream:
        return getattr(self._current, "stream", self.computing)

    @contextmanager
    def stream(self, stream: Stream) -> Iterator[None]:
        before, self._current.stream = self.current, stream
        try:
            yield
        finally:
            self._current.stream = before

    def new_stream(self, device: Any = None) -> Stream:
        self.streams.append(Stream(self))
        return self.streams[-1]

    def ask(self, do: Callable[[], None]) -> None:
        self.current.steps.append(Step(do))

    def work_until(self, enough: Callable[[], bool]) -> None:
        while not enough():
            ready = [stream for stream in self.streams if stream.steps and stream.steps[0].may_begin()]
            assert ready, "somebody waits for what will never happen"
            stream = self.by_chance.choice(ready)
            stream.steps[0].do()
            stream.steps.popleft()

    def synchronize(self, device: Any = None) -> None:
        self.work_until(lambda: not any(stream.steps for stream in self.streams))


def instead_of_cuda(monkeypatch: pytest.MonkeyPatch, gpu: Gpu) -> None:
    """Put `gpu` in place of `torch.cuda`: copies of tensors happen there; all other operations happen at once."""
    copy_ = Tensor.copy_

    def copied(target: Tensor, source: Tensor, non_blocking: bool = False) -> Tensor:
        def copy() -> None:
            copy_(target, source)

        gpu.ask(copy)
        if not non_blocking:
            gpu.current.synchronize()
        return target

    def foreach(targets: list[Tensor], sources: list[Tensor], non_blocking: bool = False) -> None:
        for target, source in zip(targets, sources, strict=True):
            copied(target, source, non_blocking)

    monkeypatch.setattr(Tensor, "copy_", copied)
    monkeypatch.setattr(torch, "_foreach_copy_", foreach)
    for name, double in {
        "Event": lambda enable_timing=False: Event(enable_timing, gpu=gpu),
        "Stream": gpu.new_stream,
        "stream": gpu.stream,
        "current_stream": lambda device: gpu.current,
        "set_device": lambda device: None,
        "synchronize": gpu.synchronize,
    }.items():
        monkeypatch.setattr(torch.cuda, name, double)
