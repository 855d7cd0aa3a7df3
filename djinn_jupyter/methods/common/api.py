"""Pieces of work spread over engines: each goes to a free engine, and to another if its engine is lost. Knows no kind
of work, and nothing of engines."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any, Final, Generic, Protocol, TypeVar

import msgspec

from djinn_jupyter.api.arrays import token_ids
from djinn_jupyter.api.engine import RemoteEngine
from djinn_jupyter.api.likeness import temporary_session
from djinn_jupyter.api.session import RemoteSession
from djinn_jupyter.errors import DjinnError, EngineUnavailable, UsageError
from djinn_jupyter.link.channel import Channel, ask_for
from djinn_jupyter.link.waiting import beside_debuggers, far
from djinn_jupyter.methods.sweep.request import LineSource
from djinn_jupyter.wire.greeting import Checked
from djinn_jupyter.wire.request_base import SessionRequest
from djinn_jupyter.wire.texts import in_quotes

Result = TypeVar("Result")
Made = TypeVar("Made", covariant=True)
Engine = TypeVar("Engine")
At = TypeVar("At", contravariant=True)
LOOK_SECONDS: Final = 0.5
Show = Callable[[], object]
Tell = Callable[[Show], object]


class PieceOfWork(Protocol[At, Made]):
    def run(self, engine: At, tell: Tell) -> Made:
        """Do the piece, and report its progress to the thread that waits for all pieces."""

    def end(self) -> None:
        """End it where it runs, from another thread."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SpreadResults(Generic[Result]):
    """The results by the number of their piece. If piece `failed` ended the others, `error` is its error; so is the
    error where no engine remained. `lost` has the reasons of lost engines."""

    found: dict[int, Result]
    error: Exception | None
    failed: int | None
    interrupted: bool
    lost: tuple[str, ...]

    @property
    def first(self) -> list[Result]:
        """The results of the pieces before the first without one."""
        count = next(number for number in range(len(self.found) + 1) if number not in self.found)
        return [self.found[number] for number in range(count)]


def spread(engines: Sequence[Engine], pieces: Sequence[PieceOfWork[Engine, Result]]) -> SpreadResults[Result]:
    """Do all pieces, one at a time at each engine. An interrupt, or a failed piece, ends those in progress."""
    under_way = _Spreading(pieces)
    threads = [threading.Thread(target=partial(under_way.work, engine), daemon=True) for engine in engines]
    for thread in threads:
        beside_debuggers(thread).start()
    interrupted = False
    try:
        under_way.show(len(threads))
    except KeyboardInterrupt:
        interrupted = True
    finally:  # also where the display fails
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
    _shows: SimpleQueue[Show | None] = field(default_factory=SimpleQueue)  # None: an engine is done

    def __post_init__(self) -> None:
        self._waiting = deque(range(len(self.pieces)))

    def show(self, engines: int) -> None:
        """Show the progress of pieces, until so many engines are done."""
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
        """Start no further piece, and end the running ones."""
        with self._changed:
            self.ended = True
            running = tuple(self._running)
            self._changed.notify_all()
        for number in running:
            with suppress(DjinnError):  # the engine is gone, with its piece
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
        """Return a waiting piece; while others run, one may come back. None when there will be none."""
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


def line_source(engine: RemoteEngine, given: object) -> LineSource:
    """Return a prompt in the form of a request: a session's name, or token ids. Raises UsageError for a session of
    another engine, where that name may mean another session, and for an empty prompt."""
    if isinstance(given, RemoteSession):
        here, there = engine.channel, given.channel
        if there is not here and there.welcome.engine != here.welcome.engine:
            raise UsageError(
                f"Session {in_quotes(given.label)} is at another engine than this; give its text or its tokens."
            )
        return given.name
    tokens = engine.tokenize(given).tokens if isinstance(given, str) else token_ids(given)
    if not tokens:
        raise UsageError("A line has no tokens; give a text or token ids, or a session.")
    return tokens


# Every engine is asked before work is spread over them, so that a refusal comes before any has begun.

Alike = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """The question whether an engine would begin a request, in a session with this adapter: `check` has the same
    fields."""

    request: SessionRequest[Any]
    check: type[SessionRequest[Checked]]
    adapter: str | None

    def to(self, channel: Channel, kind: str) -> Checked:
        with temporary_session(channel, kind, self.adapter) as session:
            fields = {**msgspec.structs.asdict(self.request), "session": session}
            return ask_for(channel, self.check(**fields))


def engines_of_one_model(engine: RemoteEngine, beside: Sequence[RemoteEngine]) -> tuple[RemoteEngine, ...]:
    """Return the engines, each once. Raises UsageError for engines of several models."""
    each = tuple({id(one.channel): one for one in (engine, *beside)}.values())
    served = [one.channel.welcome.model for one in each]
    models = sorted({f"{model.name} ({model.architecture})" for model in served})
    if len(models) > 1:
        raise UsageError(f"Work is spread over engines of one model; these serve {', '.join(models)}.")
    return each


def require_all(engines: Sequence[RemoteEngine], kind: str, question: Callable[[RemoteEngine], Question]) -> None:
    """Ask each engine to check the work. Raises the error of the first refusal, and UsageError where shards would come
    from several models. A lost engine is skipped: others do its part."""
    alike: Alike | None = None
    for engine in engines:
        try:
            with _refused_by(engine, kind):
                found = question(engine).to(engine.channel, kind).alike
                alike = found if alike is None else alike
                _require_alike(alike, found)
        except EngineUnavailable:
            continue


def _require_alike(first: Alike, these: Alike) -> None:
    for (name, there), (_, here) in zip(first, these, strict=True):
        if there != here:
            raise UsageError(f"its {name} is {_short(here)}, and that of the engine asked first {_short(there)}.")


def _short(text: str) -> str:
    return text if len(text) <= 80 else f"{text[:77]}..."


@contextmanager
def _refused_by(engine: RemoteEngine, kind: str) -> Iterator[None]:
    """Make an error name its engine, and state that nothing was begun."""
    try:
        yield
    except EngineUnavailable:
        raise
    except DjinnError as error:
        named = "An engine" if engine.entry is None else engine.entry.named
        said = type(error)(f"{named} refuses the {kind}, so that none has begun it: {error}")
        said.request = error.request
        raise said from error
