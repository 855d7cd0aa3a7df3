"""Engines that are reached through ssh: their place, the words of ssh's command line, and the sentence for each way in
which it fails.

It is `ssh` itself and no library: that has the user's agent, jumps and known hosts.
"""

from __future__ import annotations

import re
import shlex
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from typing import IO, Any, Final

import msgspec

from djinn_jupyter._version import __version__
from djinn_jupyter.client.engines import attended
from djinn_jupyter.client.engines.afar import used_by_this_process
from djinn_jupyter.client.engines.attended import end, entry_told, said_in
from djinn_jupyter.client.engines.starting import StartCallbacks
from djinn_jupyter.described import flags_of
from djinn_jupyter.errors import (
    DjinnError,
    EngineUnavailable,
    KeyRefused,
    UsageError,
    VersionMismatch,
)
from djinn_jupyter.wire import protocol
from djinn_jupyter.wire.registry import Entry

SCHEME: Final = "ssh://"
_PLACE: Final = re.compile(r"ssh://(?:[A-Za-z0-9._-]+@)?(\[[0-9A-Fa-f:.%]+\]|[A-Za-z0-9][A-Za-z0-9._-]*)(?::\d{1,5})?")
_OPTIONS: Final = ("BatchMode=yes", "RemoteCommand=none", "LogLevel=INFO", "ConnectTimeout=10")
_NOT_FOUND: Final = (126, 127)  # a shell's status for a program that is not there
_MISUSED: Final = 2  # the status of `djinn` where it does not know a word
_BROKEN: Final = 255  # ssh's own


@dataclass(frozen=True, slots=True, kw_only=True)
class SshPlace:
    """A login on another machine, as `ssh` takes it (`ssh://anna@gpu-box:22`), and a path there: of the program `djinn`
    where a user names one, of the engine's socket in an entry."""

    login: str
    host: str
    path: str | None

    def command(self, remote: str, *options: str) -> list[str]:
        """Return the command line that runs `remote` in the shell of that machine."""
        settings = [word for option in (*_OPTIONS, *options) for word in ("-o", option)]
        return ["ssh", "-T", *settings, self.login, remote]


def read_place(text: str) -> SshPlace:
    """Return what `ssh://[user@]host[:port][/path]` spells. UsageError for what is none."""
    found = _PLACE.match(text)
    path = text[found.end() :] if found else ""
    if found is None or (path and not path.startswith("/")):
        raise UsageError(f"{text!r} is no place that ssh knows; write ssh://gpu-box, or ssh://anna@gpu-box:22.")
    return SshPlace(login=found[0], host=found[1], path=path if len(path) > 1 else None)


def entry_through_ssh(place: SshPlace, model: str | None, given: Mapping[str, Any], told: StartCallbacks) -> Entry:
    """Return the entry of the engine of a model at a place, which is started there where it does not run; without a
    model that of the only one that runs. Raises as a load on that machine would, and EngineUnavailable, KeyRefused or
    VersionMismatch where it does not come to that. An interrupt ends the start."""
    words = [*([model] if model is not None else []), *flags_of(given)]
    asked = shlex.join([place.path or "djinn", "entry", f"--speaks={__version__}:{protocol.digest()}", *words])
    with tempfile.TemporaryFile() as errors:
        ssh = started(place.command(asked), errors)
        try:
            assert ssh.stdout is not None
            entry = entry_told(ssh.stdout, told)
            if entry is None:
                raise failure(place, ssh.wait(), said_in(errors))
        finally:
            end(ssh)
    return _as_used_here(entry, place)


def started(command: list[str], errors: IO[bytes]) -> subprocess.Popen[bytes]:
    """Start ssh. EngineUnavailable where there is none."""
    try:
        return attended.started(command, errors)
    except FileNotFoundError:
        raise EngineUnavailable(
            "There is no `ssh` on this machine: install OpenSSH's client, or use keys (docs/sharing.md)."
        ) from None


def failure(place: SshPlace, status: int, said: str) -> DjinnError:
    """Return the error for an ssh that ended with `status` and the words `said`."""
    host, last = place.host, (said.strip().splitlines() or ["it said nothing"])[-1].strip().rstrip(".")
    if status == _BROKEN and ("Host key verification failed" in said or "HOST IDENTIFICATION HAS CHANGED" in said):
        return KeyRefused(
            f"ssh does not know the key of {host}, or knows another: connect once by `ssh {place.login}`."
        )
    if status == _BROKEN and "Permission denied (" in said:
        return KeyRefused(
            f"{host} does not let you in without a password: see that `ssh {place.login}` asks for nothing "
            "(`ssh-copy-id`, `ssh-add`)."
        )
    if status == _BROKEN:
        return EngineUnavailable(f"ssh does not reach {host} ({last}).")
    if status in _NOT_FOUND:
        return EngineUnavailable(
            f"There is no `{place.path or 'djinn'}` that ssh finds on {host}: install Djinn there, and give its path "
            f"where `PATH` has it not, as in {place.login}/opt/venv/bin/djinn."
        )
    if status == _MISUSED:
        return VersionMismatch(f"Djinn on {host} is of another version ({last}): install the same on both sides.")
    return EngineUnavailable(f"`djinn entry` on {host} ended with status {status} ({last}).")


def _as_used_here(entry: Entry, place: SshPlace) -> Entry:
    """Return the entry of an engine of that machine as one that this process uses. Its log is on that machine."""
    socket = entry.commands.removeprefix("ipc://")
    return msgspec.structs.replace(used_by_this_process(entry), commands=f"{place.login}{socket}", log=None)
