"""Adopt the engine of a model, or start it: exactly one process for an identity, whoever asks at the same time.

A lock file is held from looking into the registry until the new engine answers. The engine is nobody's child and has
its own OS session: neither a kernel's interrupt nor its end reaches it.
"""

from __future__ import annotations

import os
import signal
import site
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import djinn_jupyter
from djinn_jupyter._version import __version__
from djinn_jupyter.client.amounts import spell_bytes
from djinn_jupyter.client.registry import registry_folder, running_engines
from djinn_jupyter.errors import EngineStartFailed, UsageError, VersionMismatch, from_code
from djinn_jupyter.wire.host import require_supported_platform
from djinn_jupyter.wire.registry import (
    LOCK_SUFFIX,
    LOG_SUFFIX,
    Entry,
    Identity,
    Options,
    Progressed,
    Ready,
    Started,
    StartFailed,
    decode_notice,
)

LAST_LINES = 15
LOG_ROTATE_BYTES = 5 * 2**20
Progress = Callable[[str], None]


def adopt_or_start(
    identity: Identity,
    options: Options,
    *,
    listen: str | None = None,
    idle_seconds: float | None = None,
    progress: Progress,
) -> Entry:
    """The entry of an engine that answers. Raises the engine's own error when it could not start."""
    require_supported_platform()
    found = adopt(identity, options)
    if found is not None:
        return found
    with _alone(identity, progress) as lock:
        found = adopt(identity, options)
        if found is not None:
            return found
        arguments = _arguments(identity, options, listen=listen, idle_seconds=idle_seconds)
        return start(identity, [*arguments, f"--launcher-lock={lock}"], keep_open=(lock,), progress=progress)


def adopt(identity: Identity, options: Options) -> Entry | None:
    """The running engine of that identity, if there is one and if it is what was asked for."""
    for entry in running_engines():
        if not entry.serves(identity):
            continue
        if entry.version != __version__:
            raise VersionMismatch(
                f"The engine of {entry.identity} runs djinn-jupyter {entry.version}, this is {__version__}: "
                "stop it with `djinn stop --force` and load again."
            )
        _require_options(entry, options)
        return entry
    return None


def start(identity: Identity, arguments: list[str], *, keep_open: tuple[int, ...], progress: Progress) -> Entry:
    """Start the process and wait until it answers. An interrupt ends what was started."""
    log_path = registry_folder() / f"{identity.slug()}{LOG_SUFFIX}"
    if log_path.exists() and log_path.stat().st_size > LOG_ROTATE_BYTES:
        log_path.replace(log_path.with_suffix(".1" + LOG_SUFFIX))
    log = os.open(log_path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    beginning = os.fstat(log).st_size
    reader, writer = os.pipe()
    command = [sys.executable, "-P", "-m", "djinn_jupyter.engine", "--detach", f"--log={log_path}", *arguments]
    try:
        _spawn([*command, f"--launcher-pipe={writer}"], log=log, keep_open=(writer, *keep_open))
    finally:
        os.close(writer)
        os.close(log)
    with os.fdopen(reader, "rb") as notices:
        entry = _await_ready(iter(notices.readline, b""), progress)
    if entry is None:
        raise EngineStartFailed(
            f"The engine of {identity} ended before it was ready. Its last lines, of {log_path}:\n"
            f"{_last_lines(log_path, beginning)}"
        )
    return entry


def _spawn(command: list[str], *, log: int, keep_open: tuple[int, ...]) -> None:
    """Returns once the process has detached itself; what is left of it here is nobody to wait for."""
    subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=log,
        pass_fds=keep_open,
        cwd="/",
        env=_environment(),
        start_new_session=True,
        check=False,
    )


def _await_ready(lines: Iterator[bytes], progress: Progress) -> Entry | None:
    """The entry of the engine once it is ready; None when it ended without a word. Whatever breaks the waiting off ends
    the engine too, also where it has not yet said which process it is."""
    pid: int | None = None
    failed: StartFailed | None = None
    notices = map(decode_notice, lines)
    try:
        for notice in notices:
            match notice:
                case Started(pid=pid):
                    pass
                case Progressed(line=told):
                    progress(told)
                case Ready(entry=entry):
                    return entry
                case StartFailed():
                    failed = notice
    except BaseException:
        _end(pid or next((notice.pid for notice in notices if isinstance(notice, Started)), None))
        for _ in lines:
            pass  # until it has gone, and its end of the pipe with it
        raise
    if failed is not None:
        raise from_code(failed.code, failed.message)
    return None


def _end(pid: int | None) -> None:
    try:
        if pid is not None:
            os.kill(pid, signal.SIGTERM)
    except ProcessLookupError:
        pass  # it has ended by itself


@contextmanager
def _alone(identity: Identity, progress: Progress) -> Iterator[int]:
    """Hold the lock of an identity, as the descriptor of its file. The lock belongs to the open file: a process that
    inherits it holds it too, and it ends with the last of them."""
    import fcntl  # not where engines cannot run; adopt_or_start has said so by then

    path = registry_folder() / f"{identity.slug()}{LOCK_SUFFIX}"
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            progress(f"waiting for {identity}, which somebody else is starting")
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield descriptor
    finally:
        os.close(descriptor)


def _require_options(entry: Entry, wanted: Options) -> None:
    """UsageError when an option was given that the running engine does not have."""
    for name in wanted.__struct_fields__:
        asked, has = getattr(wanted, name), getattr(entry.options, name)
        if asked is not None and asked is not False and asked != has:
            raise UsageError(
                f"The engine of {entry.identity} already runs with {name} = {_spelled(name, has)}, "
                f"not {_spelled(name, asked)}: "
                "leave the option out, or stop the engine first (%djinn_stop, engine.stop(), `djinn stop`)."
            )


def _spelled(option: str, value: object) -> str:
    """The value of an option as a person writes it: `500 GiB`; None by what the engine does then."""
    if value is None:
        return {"device_memory": "what is free", "card_memory": "the whole card"}.get(option, "the default")
    return spell_bytes(value) if option.endswith("_memory") and isinstance(value, int) else str(value)


def _arguments(identity: Identity, options: Options, *, listen: str | None, idle_seconds: float | None) -> list[str]:
    values = {
        **{name: getattr(identity, name) for name in identity.__struct_fields__},
        **{name: getattr(options, name) for name in options.__struct_fields__},
        "listen": listen,
        "idle_seconds": idle_seconds,
    }
    arguments: list[str] = []
    for name, value in values.items():
        flag = "--" + name.replace("_", "-")
        if value is True:
            arguments.append(flag)
        elif value is not None and value is not False:
            arguments.append(f"{flag}={value}")
    return arguments


def _environment() -> dict[str, str]:
    """The asker's environment; where this package was found beside the code, the engine must find it too."""
    environment = dict(os.environ)
    root = str(Path(djinn_jupyter.__file__).resolve().parent.parent)
    if root not in site.getsitepackages():
        environment["PYTHONPATH"] = os.pathsep.join([root, *filter(None, [environment.get("PYTHONPATH")])])
    return environment


def _last_lines(log_path: Path, beginning: int) -> str:
    with log_path.open("rb") as log:
        log.seek(beginning)
        lines = log.read().decode(errors="replace").splitlines()
    return "\n".join(lines[-LAST_LINES:]) or "(it wrote nothing)"
