"""Copies that run beside the computing: what a side stream and events are on CUDA, a thread is on the CPU.

Two rules, for both: a copy into a slot begins after the mark that was made when the slot was last computed with; and
nobody computes with a slot before its copy's arrival was waited for. Copies run one after the other, in order.
"""

from __future__ import annotations

import queue
import threading
import time
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from djinn_jupyter.errors import StorageFailed

Transfers = Sequence[tuple[Tensor, Tensor]]
"""Source and target, both `uint8` of one size."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Carried:
    """Since the start: bytes that have arrived, the seconds their copies took, what computing waited for them, and what
    passes took in all."""

    nbytes: int
    copy_seconds: float
    waited_seconds: float
    pass_seconds: float


class Carrier(Protocol):
    """`carry` returns at once, with an arrival to `wait` for; `mark` is the present place in the computing."""

    def carry(self, transfers: Transfers, after: Any) -> Any: ...

    def wait(self, arrival: Any) -> None: ...

    def mark(self) -> Any: ...

    def passing(self) -> Any:
        """A context in which time counts as a pass's."""

    def statistics(self) -> Carried: ...


def carrier_for(device: torch.device) -> Carrier:
    return StreamCarrier(device) if device.type == "cuda" else ThreadCarrier()


# ---------------------------------------------------------------------------------------------------------- on the CPU


@dataclass(slots=True, eq=False)
class _Freight:
    transfers: Transfers
    after: threading.Event
    arrived: threading.Event
    error: Exception | None = None


@dataclass(slots=True)
class _Tally:
    """Written by the copying thread alone."""

    nbytes: int = 0
    seconds: float = 0.0


class ThreadCarrier:
    """One thread that copies. On the CPU computing is over when the call returns, so a mark is passed when it is
    made."""

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

    def carry(self, transfers: Transfers, after: threading.Event) -> _Freight:
        freight = _Freight(transfers=transfers, after=after, arrived=threading.Event())
        self._freights.put(freight)
        return freight

    def wait(self, arrival: _Freight) -> None:
        """Raises StorageFailed where the bytes could not be had."""
        if not arrival.arrived.is_set():
            begun = time.perf_counter()
            arrival.arrived.wait()
            self._waited += time.perf_counter() - begun
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


def _copy_all(freights: queue.SimpleQueue[_Freight | None], tally: _Tally) -> None:
    """Until a None comes. numpy lets go of the interpreter while it copies, and starts no threads of its own."""
    while (freight := freights.get()) is not None:
        freight.after.wait()
        begun = time.perf_counter()
        try:
            for source, target in freight.transfers:
                target.numpy()[:] = source.numpy()
                tally.nbytes += target.numel()
        except Exception as error:  # noqa: BLE001  told to whoever waits, on the engine's thread
            freight.error = error
        tally.seconds += time.perf_counter() - begun
        freight.arrived.set()


# -------------------------------------------------------------------------------------------------------------- on CUDA


@dataclass(frozen=True, slots=True, eq=False)
class _Passage:
    """Two timed events of one stream, and the bytes that moved between them."""

    begun: Any
    done: Any
    nbytes: int = 0


class StreamCarrier:
    """A side stream of one device. Times are taken by events and read when these have passed, so nothing waits for a
    clock."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)
        self._copies: list[_Passage] = []
        self._waits: list[_Passage] = []
        self._passes: list[_Passage] = []
        self._nbytes, self._copying, self._waited, self._passing = 0, 0.0, 0.0, 0.0

    def mark(self) -> Any:
        event = torch.cuda.Event()
        event.record(torch.cuda.current_stream(self._device))
        return event

    def carry(self, transfers: Transfers, after: Any) -> _Passage:
        self._stream.wait_event(after)
        with torch.cuda.stream(self._stream), torch.no_grad():
            begun = self._timed(self._stream)
            for source, target in transfers:
                target.copy_(source, non_blocking=True)
            nbytes = sum(target.numel() for _, target in transfers)
            passage = _Passage(begun, self._timed(self._stream), nbytes)
        self._copies.append(passage)
        return passage

    def wait(self, arrival: _Passage) -> None:
        stream = torch.cuda.current_stream(self._device)
        begun = self._timed(stream)
        stream.wait_event(arrival.done)
        self._waits.append(_Passage(begun, self._timed(stream)))
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

    def _timed(self, stream: Any) -> Any:
        event = torch.cuda.Event(enable_timing=True)
        event.record(stream)
        return event


def _split(passages: list[_Passage]) -> tuple[list[_Passage], list[_Passage]]:
    """Those that are over, and those that are not."""
    there = [(passage, passage.done.query()) for passage in passages]
    return [passage for passage, over in there if over], [passage for passage, over in there if not over]
