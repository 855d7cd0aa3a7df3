"""Interrupts of work that has no stop to stand at: sweeps, collections, measurements of loss. One sentence says what
ended and what is kept."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from djinn_jupyter.client.waiting import waiting


class WorkInterrupted(KeyboardInterrupt):
    """Raised after a KeyboardInterrupt during a sweep, a collection or a measurement. The engine was told to end it.
    `kept` is what was finished: the Grid so far, the Losses of the first prompts, or None."""

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
