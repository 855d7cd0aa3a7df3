"""Threads of this client that Python's debugger leaves running."""

from __future__ import annotations

import threading


def beside_debuggers(thread: threading.Thread) -> threading.Thread:
    """Mark a thread so that Python's debugger leaves it running when it stops the program (ipykernel sets the same
    marks on its threads): at a long breakpoint the engine would otherwise receive no message from this client."""
    for mark in ("pydev_do_not_trace", "is_pydev_daemon_thread"):
        setattr(thread, mark, True)
    return thread
