"""Programs that run beside this process while it needs them: ssh, and the one that asks a cluster. Both report an
engine by notices (wire/registry.py)."""

from __future__ import annotations

import re
import shlex
import subprocess
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import IO, Any, Final

import msgspec

from djinn_jupyter._version import __version__
from djinn_jupyter.errors import (
    DjinnError,
    EngineUnavailable,
    KeyRefused,
    MalformedMessage,
    UsageError,
    VersionMismatch,
    from_code,
)
from djinn_jupyter.link import starting
from djinn_jupyter.link.starting import StartCallbacks
from djinn_jupyter.remote.addresses import used_by_this_process
from djinn_jupyter.settings import flags_of, words_of
from djinn_jupyter.wire import protocol
from djinn_jupyter.wire.registry import Entry, Notice, Progressed, Ready, StartFailed, StillStarting, decode_notice

END_SECONDS: Final = 2.0  # between SIGTERM and SIGKILL


@contextmanager
def running(command: list[str], errors: IO[bytes]) -> Iterator[subprocess.Popen[bytes]]:
    """Run a program, out of reach of the terminal's interrupts, and end it with the block."""
    program = started_beside(command, errors)
    try:
        yield program
    finally:
        end(program)


def started_beside(command: list[str], errors: IO[bytes]) -> subprocess.Popen[bytes]:
    """Start a program. FileNotFoundError for an unknown one."""
    return subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, start_new_session=True
    )


def end(program: subprocess.Popen[bytes]) -> None:
    """End a program and wait until it has gone."""
    program.terminate()
    try:
        program.wait(END_SECONDS)
    except subprocess.TimeoutExpired:
        program.kill()
        program.wait()
    for pipe in (program.stdin, program.stdout):
        if pipe is not None:
            pipe.close()


def said_in(errors: IO[bytes]) -> str:
    """Return a program's standard error so far."""
    errors.seek(0)
    return errors.read().decode(errors="replace")


def entry_told(lines: Iterable[bytes], told: StartCallbacks) -> Entry | None:
    """Return the entry in a program's output; None where it ended without one. Raises the error of a failed start."""
    for line in lines:
        match _notice(line):
            case Progressed(line=step):
                told.line(step)
            case StillStarting(line=step):
                told.second(step)
            case Ready(entry=entry):
                return entry
            case StartFailed(code=code, message=message):
                raise from_code(code, message)
    return None


def _notice(line: bytes) -> Notice | None:
    """Return a notice; None for a line of a shell's own, which may print anything."""
    try:
        return decode_notice(line)
    except MalformedMessage:
        return None


# Engines that are reached through ssh: their place, the words of ssh's command line, and the sentence for each failure.
# It uses `ssh` itself and no library, because `ssh` has the user's agent, jumps and known hosts.

SCHEME: Final = "ssh://"
_PLACE: Final = re.compile(r"ssh://(?:[A-Za-z0-9._-]+@)?(\[[0-9A-Fa-f:.%]+\]|[A-Za-z0-9][A-Za-z0-9._-]*)(?::\d{1,5})?")
_OPTIONS: Final = ("BatchMode=yes", "RemoteCommand=none", "LogLevel=INFO", "ConnectTimeout=10")
_NOT_FOUND: Final = (126, 127)  # a shell's status for a missing program
_MISUSED: Final = 2  # the status of `djinn` for an unknown word
_BROKEN: Final = 255  # ssh's own


@dataclass(frozen=True, slots=True, kw_only=True)
class SshPlace:
    """A login on another machine, in the form of `ssh` (`ssh://anna@gpu-box:22`), and a path there: of the program
    `djinn` where a user names one, of the engine's socket in an entry."""

    login: str
    host: str
    path: str | None

    def command(self, remote: str, *options: str) -> list[str]:
        """Return the command line that runs `remote` in the shell of that machine."""
        settings = [word for option in (*_OPTIONS, *options) for word in ("-o", option)]
        return ["ssh", "-T", *settings, self.login, remote]


def read_place(text: str) -> SshPlace:
    """Return the place that `ssh://[user@]host[:port][/path]` spells. UsageError for another text."""
    found = _PLACE.match(text)
    path = text[found.end() :] if found else ""
    if found is None or (path and not path.startswith("/")):
        raise UsageError(f"{text!r} is no place that ssh knows; write ssh://gpu-box, or ssh://anna@gpu-box:22.")
    return SshPlace(login=found[0], host=found[1], path=path if len(path) > 1 else None)


def entry_through_ssh(place: SshPlace, model: str | None, given: Mapping[str, Any], told: StartCallbacks) -> Entry:
    """Return the entry of the engine of a model at a place, starting it there if needed; without a model, of the only
    running one. Raises like a load on that machine, and EngineUnavailable, KeyRefused or VersionMismatch for earlier
    failures. An interrupt ends the start."""
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
        return started_beside(command, errors)
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
    """Return the entry of an engine of that machine, changed for use by this process. Its log stays there."""
    socket = entry.commands.removeprefix("ipc://")
    return msgspec.structs.replace(used_by_this_process(entry), commands=f"{place.login}{socket}", log=None)


# The engines of a Ray cluster, from a process on one of its machines. A child process asks Ray (`djinn cluster entry`)
# and ends; from then on messages go directly to the engine, by this user's key.

CLUSTER: Final = "cluster"  # in place of an address
_MODEL: Final = "--model="
_DJINN: Final = "from djinn_jupyter.cli.main import main; sys.exit(main())"


def entry_in_cluster(model: str | None, key: str | None, given: Mapping[str, Any], told: StartCallbacks) -> Entry:
    """Return the entry of the engine of a model in the cluster, where Ray places it if needed; without a model, of the
    only one. Raises like a load on its machine, and EngineUnavailable without a cluster. An interrupt ends the wait,
    but not the start."""
    return _asked([*([model] if model is not None else []), *_key(key), *flags_of(given)], told)


def entry_anew(entry: Entry) -> Entry:
    """Return the present entry of an engine of the cluster, perhaps on another machine where Ray has started it again.
    Waits for it; UsageError where it has ended."""
    words = ["--there", *_key(entry.key), *words_of(entry.identity)]
    model = next(word for word in words if word.startswith(_MODEL))
    words.remove(model)
    return _asked([model.removeprefix(_MODEL), *words], StartCallbacks(line=_not_said, second=_not_said))


def entry_on(machine: str, entry: Entry, given: Mapping[str, Any], told: StartCallbacks) -> Entry:
    """Return the entry of an engine on the machine of that name, like the one of `entry`, placed there if none runs.
    UsageError where no machine, or more than one, has that name."""
    return _asked([entry.identity.model, *_key(entry.key), f"--on={machine}", *flags_of(given)], told)


def _asked(words: list[str], told: StartCallbacks) -> Entry:
    command = starting.command(_DJINN, "cluster", "entry", *words)
    with tempfile.TemporaryFile() as errors, running(command, errors) as asking:
        assert asking.stdout is not None
        entry = entry_told(asking.stdout, told)
        if entry is None:
            last = (said_in(errors).strip().splitlines() or ["it said nothing"])[-1].strip().rstrip(".")
            raise EngineUnavailable(f"The cluster could not be asked ({last}).")
    return msgspec.structs.replace(used_by_this_process(entry), in_cluster=True)


def _key(key: str | None) -> list[str]:
    return [f"--key={key}"] if key else []


def _not_said(line: str) -> None: ...
