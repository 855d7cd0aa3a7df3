"""File work, done by a thread of its own while the engine's thread goes on. Independent of sessions and files."""

from __future__ import annotations

from collections.abc import Callable, Generator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Final, TypeVar

from djinn_jupyter.engine.scheduling.mailbox import Mailbox
from djinn_jupyter.engine.scheduling.scheduler import Scheduler

Outcome = TypeVar("Outcome")
UntilDone = Callable[[Future[Any]], Generator[None, None, Any]]
"""`until_done` of an engine."""
LONGEST_WAIT_SECONDS: Final = 0.05


class FileWorker:
    """One thread, started when first needed; it does its work in order."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._thread: ThreadPoolExecutor | None = None

    def start(self, work: Callable[[], Outcome]) -> Future[Outcome]:
        if self._thread is None:
            self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix=self._name)
        return self._thread.submit(work)

    def close(self) -> None:
        """Return when all work is done."""
        if self._thread is not None:
            self._thread.shutdown()
            self._thread = None


def until_done(mailbox: Mailbox, scheduler: Scheduler, work: Future[Outcome]) -> Generator[None, None, Outcome]:
    """Yield steps of a job that waits for file work: it gives way to other jobs, and sleeps when all of them wait.
    Raises the work's error."""
    work.add_done_callback(lambda _: mailbox.wake())
    scheduler.begin_wait()
    try:
        while not work.done():
            if scheduler.waiting >= len(scheduler):
                mailbox.wait(LONGEST_WAIT_SECONDS)
            yield
    finally:
        scheduler.end_wait()
    return work.result()
