"""A listener of libzmq that accepts one connection each time it is asked to.

libzmq accepts whatever comes, and has no call to wait. On Linux its listeners are in an epoll set; an entry there that
is EPOLLONESHOT reports one connection and then rests until it is armed again. The set and the entry's data are read
from the process's own fdinfo (proc(5)). Where that is missing, as on macOS, libzmq accepts as ever.
"""

from __future__ import annotations

import ctypes
import os
import platform
import re
import struct
import time
from contextlib import suppress
from pathlib import Path
from typing import Final

_FDINFO: Final = Path("/proc/self/fdinfo")
_ENTRY: Final = r"^tfd: *{} events: *[0-9a-f]*[13579bdf] data: *([0-9a-f]+)"  # odd events: EPOLLIN among them
_EVENT: Final = struct.Struct("=IQ" if platform.machine() == "x86_64" else "@IQ")  # epoll_event; packed on that one
_MODIFY: Final = 3  # EPOLL_CTL_MOD
_ONE: Final = 0x40000001  # EPOLLIN | EPOLLONESHOT
_PLUG_SECONDS: Final = 5.0  # for which libzmq's thread may take to begin to listen


class AcceptGate:
    """`listener` is the descriptor of a listener that was bound just now, and that outlives this."""

    def __init__(self, listener: int) -> None:
        self._listener = listener
        self._entry = _found(listener)
        self.close()

    def open(self) -> None:
        """Let libzmq accept the next connection, and then none. Raises OSError where the listener is gone."""
        self._report(_ONE)

    def close(self) -> None:
        """Let libzmq accept none; what comes waits in the system's queue. Raises OSError where the listener is gone."""
        self._report(0)

    def _report(self, events: int) -> None:
        if self._entry is None:
            return
        epoll, data = self._entry
        if ctypes.CDLL(None, use_errno=True).epoll_ctl(epoll, _MODIFY, self._listener, _EVENT.pack(events, data)):
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def _found(listener: int) -> tuple[int, int] | None:
    """Return the epoll set that has a listener, and the entry's data; None where the system does not tell."""
    until = time.monotonic() + _PLUG_SECONDS
    while (sets := _epoll_sets()) and time.monotonic() < until:
        for epoll, entries in sets.items():
            if found := re.search(_ENTRY.format(listener), entries, re.MULTILINE):
                return epoll, int(found[1], 16)
        time.sleep(0.001)
    return None


def _epoll_sets() -> dict[int, str]:
    """Return what the system says of each epoll set of this process, by its descriptor."""
    sets = {}
    for one in os.listdir(_FDINFO) if _FDINFO.exists() else ():
        with suppress(OSError):
            if "tfd:" in (said := (_FDINFO / one).read_text()):
                sets[int(one)] = said
    return sets
