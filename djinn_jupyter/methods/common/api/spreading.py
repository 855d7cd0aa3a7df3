"""Pieces of work spread over engines: each goes to an engine that is free, and to another where its engine is lost.
Knows no kind of work, and of engines nothing."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from queue import Empty, SimpleQueue
from typing import Final, Generic, Protocol, TypeVar

from djinn_jupyter.client.connection.own_threads import beside_debuggers
from djinn_jupyter.client.waiting import far
from djinn_jupyter.errors import DjinnError, EngineUnavailable

Result = TypeVar("Result")
Made = TypeVar("Made", covariant=True)
Engine = TypeVar("Engine")
At = TypeVar("At", contravariant=True)
LOOK_SECONDS: Final = 0.5
Show = Callable[[], object]
Tell = Callable[[Show], object]


class PieceOfWork(Protocol[At, Made]):
    def run(self, engine: At, tell: Tell) -> Made:
        """Do the piece. What is to be shown meanwhile is told, for the thread that waits for all pieces."""

    def end(self) -> None:
        """End it where it runs, from another thread."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SpreadResults(Generic[Result]):
    """The results by the number of their piece. Where piece `failed` ended the others `error` is why; where no engine
    was left it is that. `lost` says why engines went on the way."""

    found: dict[int, Result]
    error: Exception | None
    failed: int | None
    interrupted: bool
    lost: tuple[str, ...]

    @property
    def first(self) -> list[Result]:
        """The results of the pieces before the first that has none."""
        count = next(number for number in range(len(self.found) + 1) if number not in self.found)
        return [self.found[number] for number in range(count)]


def spread(engines: Sequence[Engine], pieces: Sequence[PieceOfWork[Engine, Result]]) -> SpreadResults[Result]:
    """Do all pieces, one at a time at each engine. An interrupt, or a piece that fails, ends those under way."""
    under_way = _Spreading(pieces)
    threads = [threading.Thread(target=partial(under_way.work, engine), daemon=True) for engine in engines]
    for thread in threads:
        beside_debuggers(thread).start()
    interrupted = False
    try:
        under_way.show(len(threads))
    except KeyboardInterrupt:
        interrupted = True
    finally:  # also where what is shown fails
        under_way.end()
        for thread in threads:
            while thread.is_alive():
                thread.join(LOOK_SECONDS)
                under_way.end()  # once more, for a piece that had only begun
    return under_way.results(interrupted)


@dataclass(slots=True, eq=False)
class _Spreading(Generic[Engine, Result]):
    pieces: Sequence[PieceOfWork[Engine, Result]]
    found: dict[int, Result] = field(default_factory=dict)
    error: Exception | None = None
    failed: int | None = None
    lost: list[str] = field(default_factory=list)
    ended: bool = False
    _waiting: deque[int] = field(init=False)
    _running: set[int] = field(default_factory=set)
    _changed: threading.Condition = field(default_factory=threading.Condition)
    _shows: SimpleQueue[Show | None] = field(default_factory=SimpleQueue)  # None of an engine that is done

    def __post_init__(self) -> None:
        self._waiting = deque(range(len(self.pieces)))

    def show(self, engines: int) -> None:
        """Show what pieces tell, until so many engines are done."""
        while engines:
            far(f"{len(self.found):,} of {len(self.pieces):,} parts")
            with suppress(Empty):
                show = self._shows.get(timeout=LOOK_SECONDS)  # now and then, for an interrupt
                if show is None:
                    engines -= 1
                else:
                    show()

    def results(self, interrupted: bool) -> SpreadResults[Result]:
        error = self.error
        if error is None and not interrupted and len(self.found) < len(self.pieces):
            error = EngineUnavailable(f"No engine is left to compute with. {self.lost[-1]}")
        return SpreadResults(
            found=self.found, error=error, failed=self.failed, interrupted=interrupted, lost=tuple(self.lost)
        )

    def end(self) -> None:
        """Begin no piece any more, and end those that run."""
        with self._changed:
            self.ended = True
            running = tuple(self._running)
            self._changed.notify_all()
        for number in running:
            with suppress(DjinnError):  # the engine is gone, and its piece with it
                self.pieces[number].end()

    def work(self, engine: Engine) -> None:
        try:
            self._work(engine)
        finally:
            self._shows.put(None)

    def _work(self, engine: Engine) -> None:
        """Do pieces at one engine, until none is left or the engine is lost."""
        while (number := self._next()) is not None:
            try:
                result = self.pieces[number].run(engine, self._shows.put)
            except EngineUnavailable as error:
                self._put_back(number, error)
                return
            except Exception as error:  # noqa: BLE001  raised by the thread that waits
                self._fail(number, error)
                return
            with self._changed:
                self.found[number] = result
                self._leave(number)

    def _next(self) -> int | None:
        """Return a piece that waits; as long as others run, one may come back. None where there will be none."""
        with self._changed:
            self._changed.wait_for(lambda: self.ended or self._waiting or not self._running)
            if self.ended or not self._waiting:
                return None
            number = self._waiting.popleft()
            self._running.add(number)
            return number

    def _put_back(self, number: int, error: EngineUnavailable) -> None:
        with self._changed:
            self.lost.append(str(error))
            self._waiting.appendleft(number)
            self._leave(number)

    def _fail(self, number: int, error: Exception) -> None:
        with self._changed:
            if not self.ended and self.error is None:
                self.error, self.failed = error, number
            self._leave(number)
        self.end()

    def _leave(self, number: int) -> None:
        self._running.discard(number)
        self._changed.notify_all()
