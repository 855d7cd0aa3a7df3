"""The identity of the machine, of its boot and of a process, by marks that no step of the clock changes. Standard
library only.

A process is known by its number and its *mark*, what the system noted when it began. The time at which it began is no
mark: Linux computes it from the clock of the wall, so it moves when that is set, when a laptop wakes, when a machine is
taken elsewhere.
"""

from __future__ import annotations

import functools
import os
import socket
import subprocess
import sys
from pathlib import Path

from djinn_jupyter.errors import UsageError

_LINUX_BOOT = Path("/proc/sys/kernel/random/boot_id")


def host_name() -> str:
    return socket.gethostname()


@functools.cache
def boot_id() -> str:
    """Return a text that changes with every boot of this machine, and only then."""
    if _LINUX_BOOT.exists():
        return _LINUX_BOOT.read_text().strip()
    asked = subprocess.run(["sysctl", "-n", "kern.bootsessionuuid"], capture_output=True, text=True, check=True)
    return asked.stdout.strip()


def process_mark(pid: int) -> str | None:
    """Return the mark that tells a process from all others of its number since the boot; None for none and for a
    zombie. On Linux the ticks between boot and start, on macOS the time that was noted at the start."""
    return _linux_mark(pid) if _LINUX_BOOT.exists() else _noted_start(pid)


def _linux_mark(pid: int) -> str | None:
    try:
        line = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    fields = line.rpartition(")")[2].split()  # a program's name may contain anything; fields 3, 4, ... of proc(5)
    return None if fields[0] in "ZX" else fields[19]


def _noted_start(pid: int) -> str | None:
    asked = ["ps", "-o", "stat=,lstart=", "-p", str(pid)]
    found = subprocess.run(
        asked, capture_output=True, text=True, check=False, env={**os.environ, "LC_ALL": "C", "TZ": "UTC0"}
    )
    state, _, started = found.stdout.strip().partition(" ")
    return None if not started or state.startswith("Z") else started.strip()


def require_supported_platform() -> None:
    """Raise UsageError where engines cannot run."""
    if sys.platform not in ("linux", "darwin"):
        raise UsageError(
            f"Engines run on Linux and macOS, this is {sys.platform}: they need Unix sockets and process sessions. "
            "On Windows, use Jupyter inside WSL 2."
        )
