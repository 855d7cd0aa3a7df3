"""A shard in progress: its prompts in batches or each alone, the recheck, then its destination."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

import msgspec
import torch
from torch import Tensor

from djinn_jupyter.engine.passes import forward, shared_cache
from djinn_jupyter.engine.requests.handlers import MethodParts
from djinn_jupyter.engine.residency.workspace import Reservation, Workspace
from djinn_jupyter.engine.session.residence import Blocked, Pieces, Steps
from djinn_jupyter.engine.session.session import Session
from djinn_jupyter.errors import SlabFull
from djinn_jupyter.methods.datasets.engine.batches import Batches, FittingBatches, NotBatched
from djinn_jupyter.methods.datasets.engine.places import CollectedSites, rows_of, values_alone
from djinn_jupyter.methods.datasets.engine.shard import Destination, Note, Shard, StoredShard, TensorsByName, tokens_of
from djinn_jupyter.methods.datasets.request import Collected, CollectFields, CollectionProgressed
from djinn_jupyter.wire import looks, nouns

Result = TypeVar("Result")
RECHECKED: Final = 4  # prompts of a fast shard that are computed again alone
TOLD_SECONDS: Final = 0.2
NO_MEMORY: Final = "Close sessions, or run each prompt alone (--exact); shards that are whole stay."
SMALLER: Final = "A shard's values lie in memory until it is written: have fewer prompts in each, by shard_prompts."


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedCollection:
    """A checked request. `note` describes the file, within it; `made` is what its values follow from besides the
    request."""

    request: CollectFields[Any]
    destination: Destination
    places: CollectedSites
    dtype: torch.dtype | None
    note: Note
    made: looks.Circumstances


@dataclass(slots=True, kw_only=True)
class ShardOutcome:
    """The way a shard was computed. `largest` is the difference of the prompts `rechecked` alone."""

    mode: nouns.Mode
    rechecked: list[int] = field(default_factory=list)
    largest: float | None = None
    notes: list[str] = field(default_factory=list)


class Collecting:
    """One shard, computed in the memory of one session."""

    def __init__(self, parts: MethodParts, session: Session, asked: CheckedCollection, batches: Batches) -> None:
        self.runtime, self.session, self.asked, self.batches = parts.runtime, session, asked, batches
        self.request = asked.request
        self.outcome = ShardOutcome(mode=asked.request.mode)
        self._file_work = parts.file_work
        self._told = time.monotonic()

    def steps(self, workspace: Workspace) -> Steps[Collected]:
        """Compute the shard and store it, unless it is there. Raises OutOfDeviceMemory where a batch does not fit."""
        self._note_progress(0)
        asked, tokens = self.asked, tokens_of(self.request.prompts)
        there = yield from self._done(lambda _: asked.destination.found(tokens, asked.note))
        if there is not None:
            return self._reply(there, existed=True)
        with workspace.opened(self.session) as room:
            with forward.device_memory_for("a batch of this collection", NO_MEMORY):
                shard = yield from self._computed(room)
            tensors = shard.whole()
            stored = yield from self._done(lambda abandoned: asked.destination.put(tensors, self._note(), abandoned))
        return self._reply(stored, existed=False)

    def _done(self, work: Callable[[threading.Event], Result]) -> Generator[Blocked | None, None, Result]:
        """Let the files' thread do the work, which ends early with the request."""
        abandoned = threading.Event()
        try:
            return (yield from self._file_work(lambda: work(abandoned)))
        finally:
            abandoned.set()

    def _computed(self, room: Reservation) -> Generator[Blocked | None, None, Shard]:
        if self.request.mode == "fast":
            why = yield from self._why_alone()
            if why is None:
                shard = yield from self._together(room)
                if shard is not None:
                    return shard
            else:
                self.outcome.notes.append(f"Each prompt was run alone, for these cannot share a pass: {why}.")
        return (yield from self._one_by_one(room))

    def _why_alone(self) -> Generator[Blocked | None, None, str | None]:
        """Return why prompts cannot share passes; None where they can."""
        if not self.session.as_loaded:
            return f"they are {self.session.why_alone}"
        return (yield from self.batches.why_not(self._alone, self.asked.places))

    def _one_by_one(self, room: Reservation) -> Generator[Blocked | None, None, Shard]:
        asked, shard = self.asked, self._empty()
        self.outcome.mode = "exact"
        for index, tokens in enumerate(self.request.prompts):
            values = yield from self._alone(tokens, asked.places, self._rows(index), asked.dtype)
            if index == 0:
                yield from self._take(room, shard, values)
            shard.put(index, values)
            self._tell(index + 1)
            yield None
        return shard

    def _together(self, room: Reservation) -> Generator[Blocked | None, None, Shard | None]:
        """Return the shard computed in batches; None where some prompts differ when computed again alone."""
        asked, shard, done = self.asked, self._empty(), 0
        fitting = FittingBatches(self.batches, self.request.prompts, room)
        while (taken := (yield from fitting.take())) is not None:
            batch, held = taken
            prompts, rows = [self.request.prompts[n] for n in batch], [self._rows(n) for n in batch]
            try:
                for found in self.batches.run(prompts, rows, asked.places, asked.dtype):
                    if found is None:
                        yield None
                    else:
                        values = found
            except NotBatched as error:
                self.outcome.notes.append(f"Each prompt was run alone, for these cannot share a pass: {error}.")
                return None
            finally:
                room.give_back(held)
            if not done:
                yield from self._take(room, shard, values)
            shard.put_many(batch, values)
            done += len(batch)
            self._tell(done)
            yield None
        return shard if (yield from self._recheck(shard)) else None

    def _recheck(self, shard: Shard) -> Generator[Blocked | None, None, bool]:
        """Compute some prompts of the shard again, alone, and record their difference. Return False if that exceeds
        rounding."""
        asked, request, outcome = self.asked, self.request, self.outcome
        numbers = range(len(request.prompts))
        for index in random.Random(request.seed + request.shard).sample(numbers, min(RECHECKED, len(numbers))):
            exact = yield from self._alone(request.prompts[index], asked.places, self._rows(index), asked.dtype)
            found = shard.values_of(index)
            most = max(_difference(found[name], exact[name]) for name in exact)
            outcome.largest = most if outcome.largest is None else max(outcome.largest, most)
            outcome.rechecked.append(request.first + index)
            if not all(self.batches.agree(found[name], exact[name]) for name in exact):
                outcome.notes.append(
                    f"Prompt {request.first + index} (counted from 0), computed with others, differed from the same "
                    f"computed alone by up to {most:.2g}, more than rounding: every prompt of its shard was run alone."
                )
                outcome.largest, outcome.rechecked = None, []
                return False
            yield None
        return True

    def _empty(self) -> Shard:
        positions = self.request.positions
        return Shard(self.request.prompts, None if positions is None else len(positions))

    def _take(self, room: Reservation, shard: Shard, values: TensorsByName) -> Pieces:
        """Reserve the memory of the shard, where its values lie on the device: on the CPU."""
        room.give_back(room.held)
        needed = self.asked.destination.bytes_in_memory(shard.bytes_for(values))
        if self.runtime.forward.device.type == "cpu":
            try:
                yield from room.take(needed)
            except SlabFull as error:
                raise SlabFull(f"{error} {SMALLER}") from None

    def _rows(self, index: int) -> list[int] | None:
        return rows_of(self.request.positions, len(self.request.prompts[index]), self.request.first + index)

    def _alone(
        self,
        tokens: tuple[int, ...],
        places: CollectedSites,
        rows: list[int] | None = None,
        dtype: torch.dtype | None = None,
    ) -> Generator[Blocked | None, None, TensorsByName]:
        return (yield from values_alone(self.runtime, self.session, tokens, places, rows, dtype))

    def _note_progress(self, done: int) -> None:
        """Record the number of finished prompts of the whole collection."""
        request = self.request
        total = request.first + len(request.prompts) if request.last else None
        self.session.progress.note(nouns.Progress(doing="collecting", done=request.first + done, total=total))

    def _tell(self, done: int) -> None:
        self._note_progress(done)
        if time.monotonic() - self._told < TOLD_SECONDS:
            return
        self._told = time.monotonic()
        total = len(self.request.prompts)
        self.runtime.publish(CollectionProgressed(session=self.session.name, done=done, total=total))

    def _reply(self, stored: StoredShard, *, existed: bool) -> Collected:
        return Collected(
            shard=self.request.shard,
            path=None if stored.path is None else str(stored.path),
            content=stored.content,
            prompts=len(self.request.prompts),
            bytes_stored=stored.size,
            existed=existed,
            mode=self.outcome.mode,
            rechecked=tuple(self.outcome.rechecked),
            largest_difference=self.outcome.largest,
            notes=tuple(self.outcome.notes),
        )

    def _note(self) -> Note:
        """Return the file's note on itself and on its computation."""
        computed: Note = {"mode": self.outcome.mode, "rechecked": self.outcome.rechecked}
        computed |= {"largest_difference": self.outcome.largest, "notes": self.outcome.notes}
        return {**self.asked.note, "computed": {**computed, "made": msgspec.to_builtins(self.asked.made)}}


def _difference(one: Tensor, other: Tensor) -> float:
    """Return the largest difference of two values: infinite where only one of them is finite."""
    return float(shared_cache.difference(one.to(torch.float32), other.to(torch.float32)).abs().max())
