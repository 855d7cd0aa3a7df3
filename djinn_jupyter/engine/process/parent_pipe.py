"""An engine that ends with the process that started it, however that ended: the other end of a pipe is closed then."""

from __future__ import annotations

import logging
import os
import signal
import threading

log = logging.getLogger(__name__)


def end_with_parent(descriptor: int) -> None:
    """Send this process SIGTERM, on which an engine ends in order, once the other end of the pipe is closed."""
    threading.Thread(target=_wait, args=(descriptor,), name="djinn-parent", daemon=True).start()


def _wait(descriptor: int) -> None:
    while os.read(descriptor, 1):
        pass
    log.info("The process that started this engine has gone, or ends it")
    os.kill(os.getpid(), signal.SIGTERM)
