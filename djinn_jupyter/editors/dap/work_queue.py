"""The work of one adapter: done in the order of its arrival, on one thread. Slow jobs run beside it."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import TypeVar

from djinn_jupyter.errors import DjinnError
from djinn_jupyter.link.waiting import beside_debuggers

log = logging.getLogger(__name__)

Result = TypeVar("Result")


class WorkQueue:
    """`over` is True after `close`: the adapter's thread ends after the work that it is doing."""

    def __init__(self) -> None:
        self.over = False
        self._inbox: SimpleQueue[Callable[[], None]] = SimpleQueue()

    def post(self, work: Callable[[], None]) -> None:
        """Queue `work` for the adapter's thread. May be called from any thread."""
        self._inbox.put(work)

    def take(self, seconds: float) -> Callable[[], None] | None:
        """Return the next work, or None where there is none within `seconds`."""
        try:
            return self._inbox.get(timeout=seconds)
        except Empty:
            return None

    def close(self) -> None:
        self.over = True

    def run_beside(self, job: Callable[[], Result], then: Callable[[Result | DjinnError], None]) -> None:
        """Run a slow job on a thread of its own; `then` is called on the adapter's thread with its result or error."""

        def do() -> None:
            outcome: Result | DjinnError
            try:
                outcome = job()
            except DjinnError as error:
                outcome = error
            except Exception as error:  # the top of this thread: the client waits for an answer
                log.exception("unforeseen")
                outcome = DjinnError(f"The adapter met an error it does not know ({type(error).__name__}: {error}).")
            self.post(lambda: then(outcome))

        beside_debuggers(threading.Thread(target=do, name="djinn-dap-work", daemon=True)).start()
