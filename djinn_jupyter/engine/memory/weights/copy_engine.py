"""Copies that overlap with computing: by a side stream and events on CUDA, by a thread on the CPU.

Two rules, for both: a copy into a slot begins after the mark made when the slot was last computed with; and the engine
computes with a slot only after waiting for its copy's arrival. Copies run one after the other, in order.
"""

from __future__ import annotations

import queue
import threading
import time
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor

from djinn_jupyter.engine.memory.weights.copies import Copies, Copy
from djinn_jupyter.errors import StorageFailed

Transfers = Sequence[tuple[Tensor, Tensor]]
"""Source and target, both `uint8` of one size."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Carried:
    """Totals since the start: bytes arrived, seconds spent in their copies, seconds that computing waited for them, and
    seconds spent in passes."""

    nbytes: int
    copy_seconds: float
    waited_seconds: float
    pass_seconds: float


class Carrier(Protocol):
    """The interface of a carrier. `carry` returns at once, with an arrival to `wait` for; `mark` returns the present
    position in the computing. Copies of a `block` are logged one by one."""

    def carry(self, transfers: Transfers, after: Any, block: int | None = None) -> Any: ...

    def wait(self, arrival: Any) -> None: ...

    def mark(self) -> Any: ...

    def passing(self) -> Any:
        """Return a context whose time counts as a pass's."""

    def statistics(self) -> Carried: ...

    def copies(self, since: int) -> Sequence[Copy]:
        """Return the blocks' copies that have arrived and are numbered above `since`, oldest first."""


def carrier_for(device: torch.device) -> Carrier:
    return StreamCarrier(device) if device.type == "cuda" else ThreadCarrier()


# ---------------------------------------------------------------------------------------------------------- on the CPU


@dataclass(slots=True, eq=False)
class _Freight:
    transfers: Transfers
    after: threading.Event
    arrived: threading.Event
    copy: Copy | None = None
    error: Exception | None = None


@dataclass(slots=True)
class _Tally:
    """Totals that only the copying thread writes."""

    nbytes: int = 0
    seconds: float = 0.0
    copies: Copies = field(default_factory=Copies)


class ThreadCarrier:
    """A carrier with one copying thread. On the CPU computing is done when the call returns, so a mark is already
    passed when it is made."""

    def __init__(self) -> None:
        self._freights: queue.SimpleQueue[_Freight | None] = queue.SimpleQueue()
        self._tally, self._waited, self._passing = _Tally(), 0.0, 0.0
        self._passed = threading.Event()
        self._passed.set()
        arguments = (self._freights, self._tally)
        threading.Thread(target=_copy_all, args=arguments, name="djinn-weights", daemon=True).start()
        weakref.finalize(self, self._freights.put, None)

    def mark(self) -> threading.Event:
        return self._passed

    def carry(self, transfers: Transfers, after: threading.Event, block: int | None = None) -> _Freight:
        freight = _Freight(transfers=transfers, after=after, arrived=threading.Event(), copy=_copy_of(block, transfers))
        self._freights.put(freight)
        return freight

    def wait(self, arrival: _Freight) -> None:
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
        begun = time.perf_counter()
        try:
            yield
        finally:
            self._passing += time.perf_counter() - begun

    def statistics(self) -> Carried:
        return Carried(
            nbytes=self._tally.nbytes,
            copy_seconds=self._tally.seconds,
            waited_seconds=self._waited,
            pass_seconds=self._passing,
        )

    def copies(self, since: int) -> Sequence[Copy]:
        return self._tally.copies.since(since)


def _copy_of(block: int | None, transfers: Transfers) -> Copy | None:
    return None if block is None else Copy(block=block, nbytes=sum(target.numel() for _, target in transfers))


def _copy_all(freights: queue.SimpleQueue[_Freight | None], tally: _Tally) -> None:
    """Copy freights until a None comes. numpy releases the GIL while it copies, and starts no threads of its own."""
    while (freight := freights.get()) is not None:
        freight.after.wait()
        begun = time.perf_counter()
        try:
            for source, target in freight.transfers:
                target.numpy()[:] = source.numpy()
                tally.nbytes += target.numel()
        except Exception as error:  # noqa: BLE001  raised by `wait`, on the engine's thread
            freight.error = error
        seconds = time.perf_counter() - begun
        tally.seconds += seconds
        if freight.copy is not None and freight.error is None:
            freight.copy.seconds, freight.copy.begun = seconds, time.time() - seconds
            tally.copies.add(freight.copy)
        freight.arrived.set()


# -------------------------------------------------------------------------------------------------------------- on CUDA


@dataclass(frozen=True, slots=True, eq=False)
class _Passage:
    """Two timed events of one stream, the bytes that moved between them, and the copy that was made or waited for."""

    begun: Any
    done: Any
    nbytes: int = 0
    copy: Copy | None = None


class StreamCarrier:
    """A carrier with a side stream of one device. Events take the times, which are read once the events have passed, so
    timing a copy never waits."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)
        self._copies: list[_Passage] = []
        self._waits: list[_Passage] = []
        self._passes: list[_Passage] = []
        self._nbytes, self._copying, self._waited, self._passing = 0, 0.0, 0.0, 0.0
        self._arrived = Copies()
        self._opening = self._timed(self._stream)
        self._opening.synchronize()
        self._opened = time.time()

    def mark(self) -> Any:
        event = torch.cuda.Event()
        event.record(torch.cuda.current_stream(self._device))
        return event

    def carry(self, transfers: Transfers, after: Any, block: int | None = None) -> _Passage:
        self._stream.wait_event(after)
        with torch.cuda.stream(self._stream), torch.no_grad():
            begun = self._timed(self._stream)
            for source, target in transfers:
                target.copy_(source, non_blocking=True)
            nbytes = sum(target.numel() for _, target in transfers)
            passage = _Passage(begun, self._timed(self._stream), nbytes, _copy_of(block, transfers))
        self._copies.append(passage)
        return passage

    def wait(self, arrival: _Passage) -> None:
        stream = torch.cuda.current_stream(self._device)
        begun = self._timed(stream)
        stream.wait_event(arrival.done)
        self._waits.append(_Passage(begun, self._timed(stream), copy=arrival.copy))
        if len(self._waits) > 1000:
            self.statistics()

    @contextmanager
    def passing(self) -> Iterator[None]:
        stream = torch.cuda.current_stream(self._device)
        begun = self._timed(stream)
        try:
            yield
        finally:
            self._passes.append(_Passage(begun, self._timed(stream)))

    def statistics(self) -> Carried:
        copies, self._copies = _split(self._copies)
        waits, self._waits = _split(self._waits)
        passes, self._passes = _split(self._passes)
        self._enter(copies, waits)
        self._nbytes += sum(passage.nbytes for passage in copies)
        self._copying, self._waited, self._passing = (
            before + sum(passage.begun.elapsed_time(passage.done) for passage in over) / 1e3
            for before, over in ((self._copying, copies), (self._waited, waits), (self._passing, passes))
        )
        return Carried(
            nbytes=self._nbytes,
            copy_seconds=self._copying,
            waited_seconds=self._waited,
            pass_seconds=self._passing,
        )

    def copies(self, since: int) -> Sequence[Copy]:
        self.statistics()
        return self._arrived.since(since)

    def _enter(self, copies: list[_Passage], waits: list[_Passage]) -> None:
        """Enter completed copies and waits in the log of single copies."""
        for passage in copies:
            if passage.copy is not None:
                passage.copy.seconds = passage.begun.elapsed_time(passage.done) / 1e3
                passage.copy.begun = self._opened + self._opening.elapsed_time(passage.begun) / 1e3
                self._arrived.add(passage.copy)
        for wait in waits:
            if wait.copy is not None:
                wait.copy.note_stall(wait.begun.elapsed_time(wait.done) / 1e3)

    def _timed(self, stream: Any) -> Any:
        event = torch.cuda.Event(enable_timing=True)
        event.record(stream)
        return event


def _split(passages: list[_Passage]) -> tuple[list[_Passage], list[_Passage]]:
    """Split passages into completed and pending ones."""
    there = [(passage, passage.done.query()) for passage in passages]
    return [passage for passage, over in there if over], [passage for passage, over in there if not over]
