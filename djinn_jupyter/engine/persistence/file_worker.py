"""Work on files, done by a thread of its own while the engine's thread goes on. Knows neither sessions nor files."""

from __future__ import annotations

from collections.abc import Callable, Generator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Final, TypeVar

from djinn_jupyter.engine.scheduling.mailbox import Mailbox
from djinn_jupyter.engine.scheduling.scheduler import Scheduler

Outcome = TypeVar("Outcome")
LONGEST_WAIT_SECONDS: Final = 0.05


class Errands:
    """One thread, made when it is first needed; what it is given it does in order."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._thread: ThreadPoolExecutor | None = None

    def start(self, work: Callable[[], Outcome]) -> Future[Outcome]:
        if self._thread is None:
            self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix=self._name)
        return self._thread.submit(work)

    def close(self) -> None:
        """Returns when everything is done."""
        if self._thread is not None:
            self._thread.shutdown()
            self._thread = None


def until_done(mailbox: Mailbox, scheduler: Scheduler, errand: Future[Outcome]) -> Generator[None, None, Outcome]:
    """Steps of a job that waits for an errand: gives way to the others, and rests when all of them wait. Raises what
    the errand raised."""
    errand.add_done_callback(lambda _: mailbox.wake())
    scheduler.waiting += 1
    try:
        while not errand.done():
            if scheduler.waiting >= len(scheduler):
                mailbox.wait(LONGEST_WAIT_SECONDS)
            yield
    finally:
        scheduler.waiting -= 1
    return errand.result()
