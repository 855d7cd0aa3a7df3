"""A shard under way: its prompts one by one, each alone, then the file."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Generator
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

import torch

from djinn_jupyter.engine.collecting import shard_file
from djinn_jupyter.engine.collecting.places import Places, Taken, rows_of
from djinn_jupyter.engine.collecting.shard import Shard, Values, tokens_of
from djinn_jupyter.engine.forward.frame import Frame
from djinn_jupyter.engine.persistence.file_worker import FileWorker
from djinn_jupyter.engine.session import queries
from djinn_jupyter.engine.session.runtime import Runtime
from djinn_jupyter.engine.session.session import Session
from djinn_jupyter.engine.session.steps import Blocked, Steps
from djinn_jupyter.engine.sweeps.workspace import Reservation, Workspace
from djinn_jupyter.wire.collecting import Collected, CollectionProgressed

Outcome = TypeVar("Outcome")
TOLD_SECONDS: Final = 0.2
UntilDone = Callable[[Future[Any]], Generator[None, None, Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A checked request. `note` describes the file, within it."""

    path: Path
    shard: int
    first: int
    prompts: tuple[tuple[int, ...], ...]
    places: Places
    positions: tuple[int, ...] | None
    dtype: torch.dtype | None
    note: shard_file.Note


class Collecting:
    """One shard, computed in the memory of one session."""

    def __init__(
        self, runtime: Runtime, session: Session, asked: Asked, files: FileWorker, until_done: UntilDone
    ) -> None:
        self.runtime, self.session, self.asked = runtime, session, asked
        self._files, self._until_done = files, until_done
        self._told = time.monotonic()

    def steps(self, workspace: Workspace) -> Steps:
        """Compute the shard and write it, unless it is there."""
        there = yield from self._done(lambda _: self._size_if_there())
        if there is not None:
            return self._reply(there, existed=True)
        with workspace.opened(self.runtime.space, self.session) as room:
            shard = yield from self._computed(room)
            tensors = shard.whole()
            stored = yield from self._done(
                lambda abandoned: shard_file.write(self.asked.path, tensors, self.asked.note, abandoned)
            )
        return self._reply(stored, existed=False)

    def _size_if_there(self) -> int | None:
        return shard_file.size_if_there(self.asked.path, tokens_of(self.asked.prompts), self.asked.note)

    def _done(self, work: Callable[[threading.Event], Outcome]) -> Generator[Blocked | None, None, Outcome]:
        """Have the files' thread do the work, which ends early where the request does."""
        abandoned = threading.Event()
        started = self._files.start(lambda: work(abandoned))
        try:
            outcome: Outcome = yield from self._until_done(started)
            return outcome
        finally:
            abandoned.set()

    def _computed(self, room: Reservation) -> Generator[Blocked | None, None, Shard]:
        asked = self.asked
        shard = Shard(asked.prompts, None if asked.positions is None else len(asked.positions))
        for index, tokens in enumerate(asked.prompts):
            values = yield from self._alone(tokens, rows_of(asked.positions, len(tokens), asked.first + index))
            if index == 0 and self.runtime.forward.device.type == "cpu":  # elsewhere the device holds none of it
                yield from room.take(shard.bytes_for(values))
            shard.put(index, values)
            self._tell(index + 1)
            yield None
        return shard

    def _alone(self, tokens: tuple[int, ...], rows: list[int] | None) -> Generator[Blocked | None, None, Values]:
        """Return a prompt's values in a pass of its own, which ends at the last site."""
        places = self.asked.places
        taken = [Taken(site=site, tap=tap, rows=rows, dtype=self.asked.dtype) for site, tap in places.taps.items()]
        frame = Frame(tokens=tokens, committed=0, step=0)
        targets = () if places.target is None else (places.target,)
        with queries.isolated(self.session):
            yield from queries.replay(self.runtime, self.session, frame, targets, ruled=False, observers=tuple(taken))
        return {str(one.site): one.value for one in taken if one.value is not None}

    def _tell(self, done: int) -> None:
        if time.monotonic() - self._told < TOLD_SECONDS:
            return
        self._told = time.monotonic()
        total = len(self.asked.prompts)
        self.runtime.publish(CollectionProgressed(session=self.session.name, done=done, total=total))

    def _reply(self, stored: int, *, existed: bool) -> Collected:
        return Collected(
            shard=self.asked.shard,
            path=str(self.asked.path),
            prompts=len(self.asked.prompts),
            bytes_stored=stored,
            existed=existed,
        )
