"""Folders and files that are ours alone: we own them and no other user may write to them. Standard library only.

Another user who could write where engines leave their entries, logs and sockets could make us connect to a program or
write through a link. Such a folder is refused, with a sentence on the remedy. Nothing is repaired here, because the
other user may have put its contents there.
"""

from __future__ import annotations

import errno
import functools
import os
import socket
import stat
import subprocess
import sys
from pathlib import Path
from typing import Final

from djinn_jupyter.errors import UsageError

_OTHERS_WRITE: Final = stat.S_IWGRP | stat.S_IWOTH
_ELSEWHERE: Final = "set JUPYTER_RUNTIME_DIR to a folder of your own"
ELSEWHERE: Final = (
    "set JUPYTER_DATA_DIR to a folder of your own (JUPYTER_RUNTIME_DIR too where it is set, and HF_HOME for models of "
    "the hub)"
)


def make_own_folder(path: Path, instead: str = _ELSEWHERE) -> Path:
    """Return `path`, created with mode 0700 if missing. Raises UsageError where it cannot be created or is not ours
    alone; `instead` names an alternative to repairing an existing one."""
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"The folder {path} cannot be made ({_why(error)}): {ELSEWHERE}.") from None
    require_own_folder(path, instead)
    return path


def require_own_folder(path: Path, instead: str = _ELSEWHERE) -> None:
    """Raise UsageError unless `path` is a folder of ours that no other user may write to, inside one where no other
    user may replace it; `instead` names an alternative to repairing it. FileNotFoundError where it is missing."""
    found, above = path.lstat(), path.parent.stat()
    mode = stat.S_IMODE(found.st_mode)
    if not stat.S_ISDIR(found.st_mode):
        raise UsageError(f"{path} is a link or a file, not a folder: remove it, or {instead}.")
    if found.st_uid != os.geteuid():
        raise UsageError(f"{path} belongs to {_user(found.st_uid)}, and this is {_user(os.geteuid())}: {instead}.")
    if mode & _OTHERS_WRITE:
        raise UsageError(
            f"Others may write to {path} (its mode is {mode:o}), so nothing in it can be trusted: see what lies there, "
            f"then `chmod 700 {path}`, or {instead}."
        )
    if above.st_mode & stat.S_IWOTH and not above.st_mode & stat.S_ISVTX:
        raise UsageError(
            f"All users may write to {path.parent}, and so replace {path}: `chmod o-w {path.parent}`, or {instead}."
        )


def open_own(path: Path, flags: int) -> int:
    """Return a descriptor of a regular file of ours, created with mode 0600 if `flags` allow. FileNotFoundError where
    there is none; UsageError where it is a link, not a file, another user's, or writable by others."""
    try:
        descriptor = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o600)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise UsageError(f"{path} cannot be opened ({_why(error)}): {_ELSEWHERE}.") from None
    found = os.fstat(descriptor)
    ours = stat.S_ISREG(found.st_mode) and found.st_uid == os.geteuid() and not found.st_mode & _OTHERS_WRITE
    if not ours:
        os.close(descriptor)
        raise UsageError(f"{path} is not a file that {_user(os.geteuid())} owns and alone may write: remove it.")
    return descriptor


def read_own(path: Path) -> bytes:
    """Return the contents of a file of ours; raises like `open_own`."""
    with os.fdopen(open_own(path, os.O_RDONLY), "rb") as file:
        return file.read()


def _why(error: OSError) -> str:
    if error.errno == errno.ELOOP:
        return "it is a link"
    return (error.strerror or str(error)).lower()


def _user(number: int) -> str:
    import pwd  # not on Windows, where no engine runs

    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:
        return f"user {number}"


# The identity of the machine, of its boot and of a process, by marks that no clock step changes. Standard library only.
# A process is identified by its number and its *mark*, which the system recorded at its start. The start time is no
# mark: Linux computes it from the wall clock, so it moves when the clock is set, when a laptop wakes, and when the time
# zone changes.

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
    """Return the mark that distinguishes a process from all others with its number since the boot; None for no process
    and for a zombie. On Linux the ticks between boot and start, on macOS the time recorded at the start."""
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
