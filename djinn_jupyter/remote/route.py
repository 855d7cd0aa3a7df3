"""The route to an engine's socket: direct, in a cluster, or by a tunnel of ssh. Knows no messages."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import tempfile
import threading
from pathlib import Path
from typing import IO, Final

import msgspec

from djinn_jupyter.remote import ssh
from djinn_jupyter.remote.handshake import require_reachable
from djinn_jupyter.remote.ssh import entry_anew
from djinn_jupyter.wire.registry import SOCKET_FOLDER_PREFIX, Entry

LOGIN_SECONDS: Final = 30.0
LONGEST_PATH: Final = 70  # of the folder of a Unix socket, whose path may have 103 bytes on macOS
_READY: Final = b"djinn is through\n"
_LIVELY: Final = ("ServerAliveInterval=5", "ServerAliveCountMax=3", "ExitOnForwardFailure=no")
_ALONE: Final = ("ControlMaster=no", "ControlPath=none")  # a shared login would keep the tunnel after its ssh has ended


def route_to(entry: Entry) -> Route:
    """Return the route to an engine, not open yet."""
    if entry.in_cluster:
        return InCluster(entry)
    return Tunnel(entry) if entry.commands.startswith(ssh.SCHEME) else Route(entry)


class Route:
    """A route on which sockets connect to `entry`: the address of the engine itself, which they try by themselves.
    `again_seconds` pass between two attempts to reconnect."""

    again_seconds = 0.2

    def __init__(self, entry: Entry) -> None:
        self.entry = entry

    @property
    def refusal(self) -> str | None:
        """The sentence for a route on which the other machine was reached and the engine was not; else None."""
        return None

    async def open(self) -> None:
        """Open the route. EngineUnavailable or KeyRefused where there is none."""
        await require_reachable(self.entry)

    async def mend(self) -> None:
        """Open the route again after a lost connection; raises like `open`."""

    def reached(self, entry: Entry) -> Entry:
        """Return the entry that the user knows, with the engine's present address."""
        return entry

    def close(self) -> None: ...


class InCluster(Route):
    """The address of an engine that Ray starts again on another machine when its own goes down. Once it is not found
    there, the cluster is asked for its place."""

    again_seconds = 1.0

    def __init__(self, entry: Entry) -> None:
        super().__init__(entry)
        self._tried = False

    async def mend(self) -> None:
        if self._tried:
            self.entry = await asyncio.to_thread(entry_anew, self.entry)
        self._tried = True

    def reached(self, entry: Entry) -> Entry:
        return msgspec.structs.replace(entry, commands=self.entry.commands, listens=self.entry.listens)


class Tunnel(Route):
    """A Unix socket of ours that an ssh joins with the engine's on another machine. The ssh runs `cat` there, which
    shows that the login succeeded, and ends when this process does, however it ends."""

    again_seconds = 2.0

    def __init__(self, entry: Entry) -> None:
        super().__init__(entry)
        self._far, self._place = entry, ssh.read_place(entry.commands)
        self._folder: _Folder | None = None
        self._ssh: subprocess.Popen[bytes] | None = None
        self._errors: IO[bytes] | None = None
        self._lock = threading.Lock()

    @property
    def refusal(self) -> str | None:
        said = "" if self._errors is None else ssh.said_in(self._errors)
        if "open failed: connect failed" in said:
            return f"{self._far.named} has ended; load it again, and the sessions that it has kept come back."
        if "open failed" in said:
            return f"{self._place.host} does not let ssh join a socket with the engine's (AllowStreamLocalForwarding)."
        return None

    async def open(self) -> None:
        await asyncio.to_thread(self._open)

    async def mend(self) -> None:
        self.close()
        await self.open()

    def close(self) -> None:
        """Close the route. The thread that opens it may do so at the same time."""
        with self._lock:
            running, errors, folder = self._ssh, self._errors, self._folder
            self._ssh = self._errors = self._folder = None
        if running is not None:
            ssh.end(running)
        if errors is not None:
            errors.close()
        if folder is not None:
            folder.remove()

    def _open(self) -> None:
        self._folder, self._errors = _Folder(), tempfile.TemporaryFile()  # noqa: SIM115 (`close` closes it)
        self.entry = msgspec.structs.replace(self._far, commands=f"ipc://{self._folder.socket}")
        forward = f"LocalForward={self._folder.socket} {self._place.path}"
        command = self._place.command("cat", *_LIVELY, *_ALONE, forward)
        try:
            self._ssh = ssh.started(command, self._errors)
            self._await_login(self._ssh)
        except BaseException:
            self.close()
            raise

    def _await_login(self, running: subprocess.Popen[bytes]) -> None:
        """Wait until the other machine echoes a message. Lines of its shell's own are skipped."""
        assert running.stdin is not None
        assert running.stdout is not None
        assert self._errors is not None
        too_late = threading.Timer(LOGIN_SECONDS, running.kill)
        too_late.start()
        try:
            running.stdin.write(_READY)
            running.stdin.flush()
            if _READY in running.stdout:
                return
        except BrokenPipeError:
            pass  # it has ended
        finally:
            too_late.cancel()
        raise ssh.failure(self._place, running.wait(), ssh.said_in(self._errors))


class _Folder:
    """A folder of mode 0700 with a short path for one socket. It is locked while in use, which keeps cleaners of the
    system's temporary folder away."""

    def __init__(self) -> None:
        import fcntl  # not on Windows, where no engine runs

        above = tempfile.gettempdir()
        above = above if len(os.fsencode(above)) <= LONGEST_PATH else "/tmp"
        self._path = Path(tempfile.mkdtemp(prefix=SOCKET_FOLDER_PREFIX, dir=above))
        self.socket = self._path / "commands"
        self._held = os.open(self._path, os.O_RDONLY)
        fcntl.flock(self._held, fcntl.LOCK_SH)

    def remove(self) -> None:
        shutil.rmtree(self._path, ignore_errors=True)
        os.close(self._held)
