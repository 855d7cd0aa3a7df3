"""Interrupts of work that has no stop to stand at: sweeps, collections, measurements of loss. One sentence says what
ended and what is kept."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final, ParamSpec, TypeVar

from djinn_jupyter.link.waiting import far, waiting

Item = TypeVar("Item")
Result = TypeVar("Result")


class WorkInterrupted(KeyboardInterrupt):
    """Raised after a KeyboardInterrupt during a sweep, a collection or a measurement. The engine was told to end it.
    `kept` is what was finished: the Grid so far, the Losses of the first prompts, the Edges of the first pairs and the
    like; or None."""

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
    """Have an interrupt within say what it ended and what was `done`, and have what is `kept` of it, in words and
    itself. `work` begins a sentence. What takes a second shows how far it is, unless the caller does (`quiet`)."""
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
    """Return what `do` makes of each item. An interrupt keeps what is `kept` of those that were done, if anything;
    `name` says what the items are, as "pairs"."""
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
    """Yield the items; the line of the wait says how many were done, where there are several."""
    for number, item in enumerate(items):
        if len(items) > 1:
            far(f"{number:,} of {len(items):,} {name}")
        yield item


# The one wrapper of public calls that take longer than a moment: a line says how far they are, and an interrupt raises
# and keeps what there is.

P = ParamSpec("P")
SHOWN_BY_CALLER: Final = ("on_progress", "progress", "each_second")


def waits(work: str) -> Callable[[Callable[P, Result]], Callable[P, Result]]:
    """Have a function wait so; `work` begins a sentence. WorkInterrupted for an interrupt."""

    def decorate(call: Callable[P, Result]) -> Callable[P, Result]:
        @functools.wraps(call)
        def waiting_call(*args: P.args, **kwargs: P.kwargs) -> Result:
            quiet = any(kwargs.get(name) is not None for name in SHOWN_BY_CALLER)
            with interruptible(work, quiet=quiet):
                return call(*args, **kwargs)

        return waiting_call

    return decorate
