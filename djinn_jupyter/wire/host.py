"""Which machine and which boot of it this is, so that a number of a process means something. Standard library only."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

from djinn_jupyter.errors import UsageError

_LINUX_BOOT = Path("/proc/sys/kernel/random/boot_id")


def host_name() -> str:
    return socket.gethostname()


def boot_id() -> str:
    """A text that changes with every boot of this machine."""
    if _LINUX_BOOT.exists():
        return _LINUX_BOOT.read_text().strip()
    asked = subprocess.run(["sysctl", "-n", "kern.boottime"], capture_output=True, text=True, check=True)
    return asked.stdout.strip()


def require_supported_platform() -> None:
    """UsageError where engines cannot run."""
    if sys.platform not in ("linux", "darwin"):
        raise UsageError(
            f"Engines run on Linux and macOS, this is {sys.platform}: they need Unix sockets and process sessions. "
            "On Windows, use Jupyter inside WSL 2."
        )
