"""A signal handler wakes the engine's thread while that very thread waits for requests."""

from __future__ import annotations

import subprocess
import sys

STORM = """
import signal
from djinn_jupyter.engine.loop.mailbox import Mailbox

mailbox, rung = Mailbox(), 0

def ring(*_):
    global rung
    rung += 1
    mailbox.wake()

signal.signal(signal.SIGALRM, ring)
signal.setitimer(signal.ITIMER_REAL, 5e-5, 5e-5)
while rung < 20_000:
    mailbox.wait(1e-5)
signal.setitimer(signal.ITIMER_REAL, 0)
print("woken")
"""


def test_a_signal_handler_may_wake_the_thread_that_waits() -> None:
    """If the bell were a threading.Event, one signal at the wrong moment hangs; this storm ends in RecursionError."""
    ended = subprocess.run([sys.executable, "-c", STORM], capture_output=True, text=True, timeout=120, check=True)
    assert ended.stdout == "woken\n"
