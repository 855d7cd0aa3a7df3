"""Interrupts of work without a stop: sweeps, collections, loss measurements. A sentence says what is kept."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Final, ParamSpec, TypeVar

from djinn_jupyter.displayed import ShownError
from djinn_jupyter.errors import DjinnError
from djinn_jupyter.link.channel import Channel, ask_for, followed
from djinn_jupyter.link.waiting import far, far_within, waiting
from djinn_jupyter.wire.base import WorkProgressed
from djinn_jupyter.wire.request_base import Answer
from djinn_jupyter.wire.requests import Pause, SessionRequest

Item = TypeVar("Item")
Result = TypeVar("Result")


class WorkInterrupted(KeyboardInterrupt, ShownError):
    """Raised after a KeyboardInterrupt during a sweep, a collection or a measurement, which has ended in the engine.
    `kept` has the finished part (the Grid so far, the Losses of the first prompts, the Edges of the first pairs, ...),
    or None."""

    def __init__(self, said: str, kept: object = None) -> None:
        self.kept = kept
        super().__init__(said)


@contextmanager
def interruptible(
    work: str,
    kept: Callable[[], tuple[str, object]] = lambda: ("", None),
    *,
    done: str = "the engine told to end it",
    quiet: bool = False,
) -> Iterator[None]:
    """Convert an interrupt within the block to WorkInterrupted. `work` begins its sentence, `done` says how much was
    finished, and `kept` returns the finished part, in words and itself. Work of more than a second shows its progress,
    unless the caller does (`quiet`)."""
    try:
        with waiting(work, quiet=quiet):
            yield
    except WorkInterrupted:
        raise
    except KeyboardInterrupt:
        words, found = kept()
        said = f"{work} was interrupted, and {done}. {words}"
        raise WorkInterrupted(said.strip(), found) from None


def in_parts(
    work: str, name: str, items: Sequence[Item], do: Callable[[Item], Result], kept: Callable[[list[Result]], object]
) -> list[Result]:
    """Return `do(item)` for each item. An interrupt keeps `kept` of the finished ones, if any; `name` is the noun for
    items, such as "pairs"."""
    found: list[Result] = []

    def left() -> tuple[str, object]:
        rest = kept(found)
        said = f"{len(found):,} of {len(items):,} {name} were done; `kept` of this error has what there is."
        return ("", None) if rest is None else (said, rest)

    with interruptible(work, left):
        for item in counted(items, name):
            found.append(do(item))
    return found


def counted(items: Sequence[Item], name: str) -> Iterator[Item]:
    """Yield the items and count them in the progress line, where there are several."""
    for number, item in enumerate(items):
        if len(items) > 1:
            far(f"{number:,} of {len(items):,} {name}")
        yield item


# The one wrapper of public calls that take longer than a moment: a line shows their progress, and an interrupt raises
# and keeps the finished part.

P = ParamSpec("P")
SHOWN_BY_CALLER: Final = ("on_progress", "progress", "each_second")


def waits(work: str) -> Callable[[Callable[P, Result]], Callable[P, Result]]:
    """Decorate a function so that it shows its progress; `work` begins a sentence. WorkInterrupted for an interrupt."""

    def decorate(call: Callable[P, Result]) -> Callable[P, Result]:
        @functools.wraps(call)
        def waiting_call(*args: P.args, **kwargs: P.kwargs) -> Result:
            quiet = any(kwargs.get(name) is not None for name in SHOWN_BY_CALLER)
            with interruptible(work, quiet=quiet):
                return call(*args, **kwargs)

        return waiting_call

    return decorate


ITS_PARTS: Final = "`kept` of this error has the parts that were done."


def replied_in_parts(
    channel: Channel, request: SessionRequest[Answer], work: str, kept: Callable[[Answer], object]
) -> Answer:
    """Return the reply to a request whose work has parts, and show its progress. On an interrupt, or when another
    client pauses the session, the engine replies with the finished parts, and WorkInterrupted has `kept` of them. A
    second interrupt, and one without finished or kept parts, is a KeyboardInterrupt."""
    with followed(channel, request.session, request) as under_way:
        try:
            for event in under_way.events():
                if isinstance(event, WorkProgressed):
                    far_within(str(event.progress))
            reply = under_way.reply.result()
            if reply.is_whole_for(request):
                return reply
        except KeyboardInterrupt:
            reply = _ended(channel, request.session, under_way.reply)
    parts = kept(reply)
    if parts is None:
        raise KeyboardInterrupt
    raise WorkInterrupted(f"{work} was interrupted, and the engine told to end it. {ITS_PARTS}", parts)


def _ended(channel: Channel, session: str, reply: Future[Answer]) -> Answer:
    """End the work of a session with its finished parts, and return the reply."""
    if channel.take_back(reply) or channel.down_since is not None:
        raise KeyboardInterrupt
    try:
        if not ask_for(channel, Pause(session=session)).was_running and not reply.done():
            raise KeyboardInterrupt
        return reply.result()
    except DjinnError:
        raise KeyboardInterrupt from None
