"""One daemon thread that runs an event loop, so that sockets work beside synchronous user code.

Works inside and outside Jupyter; touches no other event loop. A forked child has no such thread: its calls raise
EngineUnavailable.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

from djinn_jupyter.client.connection.awaiting import awaited
from djinn_jupyter.client.connection.own_threads import beside_debuggers
from djinn_jupyter.errors import EngineUnavailable

Result = TypeVar("Result")


class IoThread:
    def __init__(self) -> None:
        self._pid = os.getpid()
        self._loop = asyncio.new_event_loop()
        self._thread = beside_debuggers(threading.Thread(target=self._run, name="djinn-io", daemon=True))
        self._thread.start()

    @property
    def usable(self) -> bool:
        """False in a forked child and after `stop`."""
        return self._pid == os.getpid() and self._thread.is_alive()

    def wait(self, work: Coroutine[Any, Any, Result], look: Callable[[], None] = lambda: None) -> Result:
        """Run `work` in the loop and wait for its result; `look` is called now and then meanwhile. An interrupt cancels
        the work. Do not call it from the loop itself."""
        try:
            self._require_usable()
        except EngineUnavailable:
            work.close()
            raise
        working = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return awaited(working, look)
        finally:
            working.cancel()  # does nothing where it is done

    def call(self, work: Callable[[], None]) -> None:
        """Schedule `work` in the loop and return at once."""
        self._require_usable()
        self._loop.call_soon_threadsafe(work)

    def stop(self) -> None:
        if self.usable:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()

    def _run(self) -> None:
        try:
            self._loop.run_forever()
        finally:
            self._loop.close()

    def _require_usable(self) -> None:
        if not self.usable:
            raise EngineUnavailable(
                "The connection to the engine does not reach into a forked process (or has been closed): "
                "load the engine again here."
            )


def settled(future: Future[Result], outcome: Result | BaseException) -> None:
    """Set a future's result or its error."""
    if isinstance(outcome, BaseException):
        future.set_exception(outcome)
    else:
        future.set_result(outcome)
