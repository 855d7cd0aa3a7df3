"""The thread that copies bytes between the tiers. It does no accounting: it is given places and reports completion.

Order on CUDA: a batch carries a compute-stream event recorded when it was submitted, and the side stream waits for it
before the first byte, both for stores (the kernels that wrote have ended) and for loads (the kernels that read the
slot's previous contents have ended). The thread waits for the side stream before it reports a batch as done, so freeing
a slot, or computing with one, comes after every copy.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import count
from typing import Any, Protocol

import torch

from djinn_jupyter.engine.memory.offload.disk import DiskPlace, DiskTier
from djinn_jupyter.engine.memory.offload.extents import Span, coalesced, in_words
from djinn_jupyter.engine.system.device import timed_on
from djinn_jupyter.errors import DjinnError, StorageFailed

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Copy:
    """A move from memory to memory, either side on the device or the host."""

    source: Span
    target: Span


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Write:
    source: Span
    disk: DiskTier
    place: DiskPlace


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Read:
    disk: DiskTier
    place: DiskPlace
    checksum: int
    target: Span


MoverTask = Copy | Write | Read


@dataclass(slots=True, kw_only=True, eq=False)
class MoverBatch:
    """Moves that succeed or fail together. `ready` are the compute streams' events, none on the CPU. `urgent` batches,
    for which a session waits, go before the others. A batch that has ended has no moves any more: the memory at their
    two sides can be freed at once, while the mover's thread may still hold the batch."""

    moves: tuple[MoverTask, ...]
    urgent: bool
    ready: tuple[Any, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Moved:
    """The result of a batch: one of `checksums` for each move (None where nothing was written to disk), or the `error`
    for which none of it counts. `seconds` are those of its copies: it has waited before, in the queue and for the
    computing that it follows."""

    batch: MoverBatch
    checksums: tuple[int | None, ...] = ()
    error: DjinnError | None = None
    seconds: float = 0.0


class Mover(Protocol):
    """The interface of a mover. Batches may end in any order; each ends once, with one `Moved`."""

    def submit(self, batch: MoverBatch) -> None: ...
    def stop(self) -> None: ...


@dataclass(order=True, slots=True)
class _Waiting:
    rank: tuple[int, int]
    batch: MoverBatch | None = field(compare=False)


class ThreadMover:
    """One daemon thread, started with the first batch. `post` is called on it."""

    def __init__(self, post: Callable[[Moved], None], *devices: torch.device) -> None:
        self._post, self._devices = post, devices
        self._batches: queue.PriorityQueue[_Waiting] = queue.PriorityQueue()
        self._numbers = count()
        self._thread: threading.Thread | None = None

    def submit(self, batch: MoverBatch) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="djinn-mover", daemon=True)
            self._thread.start()
        self._batches.put(_Waiting((not batch.urgent, next(self._numbers)), batch))

    def stop(self) -> None:
        """End the thread once the submitted batches are done."""
        if self._thread is not None:
            self._batches.put(_Waiting((2, 0), None))
            self._thread.join()
            self._thread = None

    def _work(self) -> None:
        streams: tuple[Any, ...] = ()
        if self._devices[0].type == "cuda":
            torch.cuda.set_device(self._devices[0])  # each thread has a current one of its own
            streams = tuple(torch.cuda.Stream(device) for device in self._devices)
        while self._work_once(streams):
            pass

    def _work_once(self, streams: Sequence[Any]) -> bool:
        """Perform one batch; False for the end mark. A separate call, so that a waiting thread holds no batch, and with
        it no session's memory."""
        batch = self._batches.get().batch
        if batch is not None:
            self._post(perform(batch, *streams))
        return batch is not None


def perform(batch: MoverBatch, *streams: Any) -> Moved:
    """Do all moves of a batch on the calling thread. Errors are returned in `Moved`, not raised."""
    try:
        checksums, seconds = _on(streams, batch)
    except DjinnError as error:
        return Moved(batch=batch, error=_without_frames(error))
    except Exception as error:  # the thread's edge: the error goes into `Moved`, and other batches go on
        log.exception("A copy failed")
        return Moved(batch=batch, error=StorageFailed(f"A copy failed: {type(error).__name__}: {error}."))
    finally:
        batch.moves = ()
    return Moved(batch=batch, checksums=checksums, seconds=seconds)


def _without_frames(error: DjinnError) -> DjinnError:
    """Return the error with its sentence alone: the frames of a traceback hold the memory at both sides of a move."""
    error.__cause__ = error.__context__ = error.__traceback__ = None
    return error


def _on(streams: Sequence[Any], batch: MoverBatch) -> tuple[tuple[int | None, ...], float]:
    """Return the checksums, and the seconds that the copies took: on CUDA without the wait for what was computed, and
    those of the device that took longest."""
    with torch.inference_mode(), ExitStack() as current:  # the mode is per thread, and frames hold tensors made in it
        if not streams:
            begun = time.perf_counter()
            return _all(batch.moves), time.perf_counter() - begun
        for stream, ready in zip(streams, batch.ready, strict=True):
            current.enter_context(torch.cuda.stream(stream))  # each is the current one of its own device
            stream.wait_event(ready)
        begun_on_device = [timed_on(stream) for stream in streams]
        try:
            checksums, done = _all(batch.moves), [timed_on(stream) for stream in streams]
        finally:  # also after an error: what the other moves copy may be freed once the batch has ended
            for stream in streams:
                stream.synchronize()
        return checksums, max(first.elapsed_time(last) for first, last in zip(begun_on_device, done, strict=True)) / 1e3


def _all(moves: Iterable[MoverTask]) -> tuple[int | None, ...]:
    moves = tuple(moves)
    plain = ((move.source, move.target) for move in moves if isinstance(move, Copy))
    sides = [in_words(source, target) for source, target in coalesced(plain)]
    if sides:  # in one call: between two, the engine's thread could hold the GIL for milliseconds
        torch._foreach_copy_([target for _, target in sides], [source for source, _ in sides], non_blocking=True)
    return tuple(_with_the_disk(move) for move in moves)


def _with_the_disk(move: MoverTask) -> int | None:
    match move:
        case Write():
            return move.disk.write(move.place, move.source)
        case Read():
            move.disk.read(move.place, move.checksum, move.target)
    return None
