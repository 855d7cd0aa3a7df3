"""Copies that overlap with computing: by a side stream and events on CUDA, by a thread on the CPU. Two rules, for both:
a copy into a slot begins after the mark made when the slot was last computed with; and the engine computes with a slot
only after waiting for its copy's arrival. Copies run one after the other, in order."""

from __future__ import annotations

import queue
import threading
import time
import weakref
from bisect import bisect_left
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor

from djinn_jupyter.engine.memory.weights.host_weights import HOST, flat_buffer
from djinn_jupyter.engine.system.device import event_on, timed_on
from djinn_jupyter.errors import StorageFailed

KEPT = 8192


@dataclass(slots=True, kw_only=True, eq=False)
class BlockCopy:
    """One copy of a block. `begun` is in seconds since the epoch, `began` on the clock of `Computed`; `stalled` is the
    seconds computing waited for it, None until the block is first waited for."""

    block: int
    nbytes: int
    seconds: float = 0.0
    begun: float = 0.0
    began: float = 0.0
    stalled: float | None = None
    number: int = 0

    def note_made(self, *, began: float, seconds: float, begun: float) -> None:
        """Note when it was made, on both clocks, and how long that took."""
        self.began, self.seconds, self.begun = began, seconds, begun

    def note_stall(self, seconds: float) -> None:
        """Note the time that the first computation with it waited."""
        if self.stalled is None:
            self.stalled = seconds


class ArrivedCopies:
    """The last `kept` copies that have arrived, numbered from 1. One thread adds; another may read concurrently."""

    def __init__(self, kept: int = KEPT) -> None:
        self._arrived: deque[BlockCopy] = deque(maxlen=kept)
        self._count = 0

    def add(self, copy: BlockCopy) -> None:
        self._count += 1
        copy.number = self._count
        self._arrived.append(copy)

    def since(self, number: int) -> list[BlockCopy]:
        """Return the copies with numbers above `number`, oldest first."""
        return [copy for copy in self._arrived.copy() if copy.number > number]


class Computed:
    """The last `kept` times in which a pass computed, in their order: it neither waited for weights nor fetched any."""

    def __init__(self, kept: int = 2 * KEPT) -> None:
        self._begins: deque[float] = deque(maxlen=kept)
        self._ends: deque[float] = deque(maxlen=kept)

    def add(self, begun: float, ended: float) -> None:
        self._begins.append(begun)
        self._ends.append(ended)

    def during(self, copies: Sequence[BlockCopy]) -> list[float]:
        """Return for each copy the seconds in which something was computed while it was made."""
        begins, ends = list(self._begins), list(self._ends)
        return [_shared(copy.began, copy.began + copy.seconds, begins, ends) for copy in copies]


def _shared(begun: float, ended: float, begins: Sequence[float], ends: Sequence[float]) -> float:
    first, last = bisect_left(ends, begun), bisect_left(begins, ended)
    return sum(min(ended, ends[at]) - max(begun, begins[at]) for at in range(first, last))


Transfers = Sequence[tuple[Tensor, Tensor]]
"""Source and target, both `uint8` of one size."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyTotals:
    """Totals since the start: bytes arrived, seconds spent in their copies, seconds that computing waited for them, and
    seconds spent in passes."""

    nbytes: int
    copy_seconds: float
    waited_seconds: float
    pass_seconds: float


class CopyEngine(Protocol):
    """The interface of a copy engine. `submit` returns at once, with an arrival to `wait` for; `mark` returns the
    present position in the computing. Copies of a `block` are logged one by one."""

    def submit(self, transfers: Transfers, after: Any, block: int | None = None) -> Any: ...

    def wait(self, arrival: Any) -> None: ...

    def mark(self) -> Any: ...

    def passing(self) -> Any:
        """Return a context whose time counts as a pass's. Within another, as for a lens, it is that pass's time."""

    def fetching(self) -> Any:
        """Return a context, within a pass, that only waits for a block's weights and sends for the next ones."""

    def statistics(self) -> CopyTotals: ...

    def copies(self, since: int) -> Sequence[BlockCopy]:
        """Return the blocks' copies that have arrived and are numbered above `since`, oldest first."""

    def computed_during(self, copies: Sequence[BlockCopy]) -> Sequence[float]:
        """Return for each copy the seconds in which something was computed while it was made."""


def copy_engine_for(device: torch.device) -> CopyEngine:
    return StreamCopyEngine(device) if device.type == "cuda" else ThreadCopyEngine()


@dataclass(slots=True, eq=False)
class _QueuedCopy:
    transfers: Transfers
    after: threading.Event
    arrived: threading.Event
    copy: BlockCopy | None = None
    error: Exception | None = None


@dataclass(slots=True)
class _Tally:
    """Totals that only the copying thread writes."""

    nbytes: int = 0
    seconds: float = 0.0
    copies: ArrivedCopies = field(default_factory=ArrivedCopies)


class ThreadCopyEngine:
    """A copy engine with one copying thread. On the CPU computing is done when the call returns, so a mark is already
    passed when it is made."""

    def __init__(self) -> None:
        self._queued: queue.SimpleQueue[_QueuedCopy | None] = queue.SimpleQueue()
        self._tally, self._waited, self._passing = _Tally(), 0.0, 0.0
        self._computed = Computed()
        self._since: float | None = None  # when computing began or went on, within a pass
        self._passed = threading.Event()
        self._passed.set()
        arguments = (self._queued, self._tally)
        threading.Thread(target=_copy_all, args=arguments, name="djinn-weights", daemon=True).start()
        weakref.finalize(self, self._queued.put, None)

    def mark(self) -> threading.Event:
        return self._passed

    def submit(self, transfers: Transfers, after: threading.Event, block: int | None = None) -> _QueuedCopy:
        queued = _QueuedCopy(
            transfers=transfers, after=after, arrived=threading.Event(), copy=_copy_of(block, transfers)
        )
        self._queued.put(queued)
        return queued

    def wait(self, arrival: _QueuedCopy) -> None:
        """Wait for an arrival. Raises StorageFailed if the bytes could not be read."""
        waited = 0.0
        if not arrival.arrived.is_set():
            begun = time.perf_counter()
            arrival.arrived.wait()
            waited = time.perf_counter() - begun
        self._waited += waited
        if arrival.copy is not None:
            arrival.copy.note_stall(waited)
        if arrival.error is not None:
            raise StorageFailed(f"Weights could not be copied to where they are computed with: {arrival.error}")

    @contextmanager
    def passing(self) -> Iterator[None]:
        if self._since is not None:
            yield
            return
        begun = self._since = time.perf_counter()
        try:
            yield
        finally:
            ended = time.perf_counter()
            self._passing += ended - begun
            self._computed.add(self._since, ended)
            self._since = None

    @contextmanager
    def fetching(self) -> Iterator[None]:
        since = self._since
        if since is not None:
            self._computed.add(since, time.perf_counter())
        try:
            yield
        finally:
            self._since = None if since is None else time.perf_counter()

    def statistics(self) -> CopyTotals:
        return CopyTotals(
            nbytes=self._tally.nbytes,
            copy_seconds=self._tally.seconds,
            waited_seconds=self._waited,
            pass_seconds=self._passing,
        )

    def copies(self, since: int) -> Sequence[BlockCopy]:
        return self._tally.copies.since(since)

    def computed_during(self, copies: Sequence[BlockCopy]) -> Sequence[float]:
        return self._computed.during(copies)


def _copy_of(block: int | None, transfers: Transfers) -> BlockCopy | None:
    return None if block is None else BlockCopy(block=block, nbytes=sum(target.numel() for _, target in transfers))


def _copy_all(copies: queue.SimpleQueue[_QueuedCopy | None], tally: _Tally) -> None:
    """Carry out copies until a None comes. numpy releases the GIL while it copies, and starts no threads of its own."""
    while (queued := copies.get()) is not None:
        queued.after.wait()
        begun = time.perf_counter()
        try:
            for source, target in queued.transfers:
                target.numpy()[:] = source.numpy()
                tally.nbytes += target.numel()
        except Exception as error:  # noqa: BLE001  raised by `wait`, on the engine's thread
            queued.error = error
        seconds = time.perf_counter() - begun
        tally.seconds += seconds
        if queued.copy is not None and queued.error is None:
            queued.copy.note_made(began=begun, seconds=seconds, begun=time.time() - seconds)
            tally.copies.add(queued.copy)
        queued.arrived.set()


@dataclass(frozen=True, slots=True, eq=False)
class _Interval:
    """Two timed events of one stream, the bytes that moved between them, and the copy that was made or waited for."""

    begun: Any
    done: Any
    nbytes: int = 0
    copy: BlockCopy | None = None


class StreamCopyEngine:
    """A copy engine with a side stream of one device. Events take the times, which are read once the events have
    passed, so timing a copy never waits."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)
        self._copies: list[_Interval] = []
        self._waits: list[_Interval] = []
        self._passes: list[_Interval] = []
        self._computing: list[_Interval] = []
        self._since: Any = None  # the event at which computing began or went on, within a pass
        self._nbytes, self._copying, self._waited, self._passing = 0, 0.0, 0.0, 0.0
        self._arrived, self._computed = ArrivedCopies(), Computed()
        self._opening = timed_on(self._stream)
        self._opening.synchronize()
        self._opened = time.time()

    def mark(self) -> Any:
        return event_on(self._device)

    def submit(self, transfers: Transfers, after: Any, block: int | None = None) -> _Interval:
        self._stream.wait_event(after)
        with torch.cuda.stream(self._stream), torch.no_grad():
            begun = timed_on(self._stream)
            for source, target in transfers:
                target.copy_(source, non_blocking=True)
            nbytes = sum(target.numel() for _, target in transfers)
            interval = _Interval(begun, timed_on(self._stream), nbytes, _copy_of(block, transfers))
        self._copies.append(interval)
        return interval

    def wait(self, arrival: _Interval) -> None:
        stream = torch.cuda.current_stream(self._device)
        begun = timed_on(stream)
        stream.wait_event(arrival.done)
        self._waits.append(_Interval(begun, timed_on(stream), copy=arrival.copy))
        if len(self._waits) > 1000:
            self.statistics()

    @contextmanager
    def passing(self) -> Iterator[None]:
        if self._since is not None:
            yield
            return
        stream = torch.cuda.current_stream(self._device)
        begun = self._since = timed_on(stream)
        try:
            yield
        finally:
            ended = timed_on(stream)
            self._passes.append(_Interval(begun, ended))
            self._computing.append(_Interval(self._since, ended))
            self._since = None

    @contextmanager
    def fetching(self) -> Iterator[None]:
        stream, since = torch.cuda.current_stream(self._device), self._since
        if since is not None:
            self._computing.append(_Interval(since, timed_on(stream)))
        try:
            yield
        finally:
            self._since = None if since is None else timed_on(stream)

    def statistics(self) -> CopyTotals:
        copies, self._copies = _split(self._copies)
        waits, self._waits = _split(self._waits)
        passes, self._passes = _split(self._passes)
        computing, self._computing = _split(self._computing)
        self._enter(copies, waits)
        for interval in computing:
            self._computed.add(self._at(interval.begun), self._at(interval.done))
        self._nbytes += sum(interval.nbytes for interval in copies)
        self._copying, self._waited, self._passing = (
            before + sum(interval.begun.elapsed_time(interval.done) for interval in over) / 1e3
            for before, over in ((self._copying, copies), (self._waited, waits), (self._passing, passes))
        )
        return CopyTotals(
            nbytes=self._nbytes, copy_seconds=self._copying, waited_seconds=self._waited, pass_seconds=self._passing
        )

    def copies(self, since: int) -> Sequence[BlockCopy]:
        self.statistics()
        return self._arrived.since(since)

    def computed_during(self, copies: Sequence[BlockCopy]) -> Sequence[float]:
        return self._computed.during(copies)

    def _enter(self, copies: list[_Interval], waits: list[_Interval]) -> None:
        """Enter completed copies and waits in the log of single copies."""
        for interval in copies:
            if interval.copy is not None:
                began, seconds = self._at(interval.begun), interval.begun.elapsed_time(interval.done) / 1e3
                interval.copy.note_made(began=began, seconds=seconds, begun=self._opened + began)
                self._arrived.add(interval.copy)
        for wait in waits:
            if wait.copy is not None:
                wait.copy.note_stall(wait.begun.elapsed_time(wait.done) / 1e3)

    def _at(self, event: Any) -> float:
        """Return the seconds from the engine's beginning to an event that has passed."""
        milliseconds: float = self._opening.elapsed_time(event)
        return milliseconds / 1e3


def _split(intervals: list[_Interval]) -> tuple[list[_Interval], list[_Interval]]:
    """Split intervals into completed and pending ones."""
    there = [(interval, interval.done.query()) for interval in intervals]
    return [interval for interval, over in there if over], [interval for interval, over in there if not over]


ROUNDS = 4
MOST = 128 << 20  # more than a processor's caches hold, so that a repeated copy is not read from them


def measure_link(device: torch.device, allowed: int) -> float:
    """Return bytes per second of the best of a few rounds of copies, made as a copy engine makes them: from a source of
    at most half of `allowed`, into a sixteenth of it. The source is memory; a disk may be slower."""
    cuda = device.type == "cuda"
    size = min(MOST, max(1 << 16, allowed // 2))
    source = torch.empty(size, dtype=torch.uint8, pin_memory=True) if cuda else flat_buffer(size, HOST)
    target = flat_buffer(max(1 << 13, min(size, allowed // 16)), device)
    source.fill_(1)
    seconds = []
    for _ in range(ROUNDS):
        begun = time.perf_counter()
        for piece in source.split(target.numel()):
            if cuda:
                target[: piece.numel()].copy_(piece, non_blocking=True)
            else:
                target.numpy()[: piece.numel()] = piece.numpy()
        if cuda:
            torch.cuda.synchronize(device)
        seconds.append(time.perf_counter() - begun)
    return size / min(seconds[1:])


def measure_return(device: torch.device, allowed: int) -> float:
    """Return bytes per second of the best of a few rounds of copies from a GPU to pinned host memory, as sessions leave
    it; of at most a sixteenth of `allowed`."""
    source = flat_buffer(max(1 << 13, min(MOST, allowed // 16)), device)
    target = torch.empty(source.numel(), dtype=torch.uint8, pin_memory=True)
    seconds = []
    for _ in range(ROUNDS):
        torch.cuda.synchronize(device)
        begun = time.perf_counter()
        target.copy_(source, non_blocking=True)
        torch.cuda.synchronize(device)
        seconds.append(time.perf_counter() - begun)
    return source.numel() / min(seconds[1:])
