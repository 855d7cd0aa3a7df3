"""Start a Python process of this package that runs the same under a debugger or profiler of the parent process.

Debuggers and profilers rewrite command lines that begin with Python, in `subprocess` and in `os` (pydevd turns them
into `pydevd.py --multiprocess ...`, whose process then waits for an editor), and pass themselves on through the
environment. So the command line begins with a shell, which these tools leave alone, and the environment is passed
without their variables.
"""

from __future__ import annotations

import os
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

import psutil

from djinn_jupyter import _version
from djinn_jupyter.errors import EngineStartFailed, from_code
from djinn_jupyter.units import spell_bytes
from djinn_jupyter.wire.registry import Entry, Notice, Progressed, Ready, Started, StartFailed, decode_notice

SHELL: Final = "/bin/sh"
_FOREGROUND: Final = 'exec "$0" "$@"'
_BACKGROUND: Final = '"$0" "$@" &'  # the shell ends at once, so no process of ours is the parent of the new one
_FIND_PACKAGE: Final = "import sys; root = sys.argv.pop(1); root in sys.path or sys.path.insert(0, root); "

_WATCHERS: Final = re.compile(r"COVERAGE_|COV_CORE_|PYDEVD|DEBUGPY_|VIZTRACER|SCALENE|MEMRAY")
_THIS_KERNEL: Final = re.compile(r"JPY_|MPLBACKEND$|__PYVENV_LAUNCHER__$")
_FOLDER: Final = re.compile(r"(JUPYTER_\w+_DIR|HF_\w*(HOME|CACHE)|XDG_\w+_(HOME|DIR)|TMPDIR)$")
_INTERPRETER: Final = re.compile(r"PYTHON[A-Z]")
_KEPT: Final = frozenset(
    {
        "PYTHONPATH",
        "PYTHONUSERBASE",
        "PYTHONNOUSERSITE",
        "PYTHONPLATLIBDIR",
        "PYTHONPYCACHEPREFIX",
        "PYTHONDONTWRITEBYTECODE",
        "PYTHONUTF8",
        "PYTHONCOERCECLOCALE",
        "PYTHONIOENCODING",
        "PYTHONHASHSEED",
        "PYTHONFAULTHANDLER",
    }
)
"""The interpreter's variables for paths and text encoding. The others observe, debug or change how code runs:
PYTHONOPTIMIZE=2 alone removes the docstrings that transformers edits at import."""


def command(code: str, *arguments: str, background: bool = False) -> list[str]:
    """Return the command line that runs `code` in this interpreter, with this package's folder on its path."""
    if not sys.executable:
        raise EngineStartFailed(
            "This process does not know which Python runs it (sys.executable is empty), so it can start no engine: "
            "start one in a terminal with `djinn start MODEL`, and load it here."
        )
    run = [sys.executable, *_flags(), "-c", _FIND_PACKAGE + code, package_root()]
    return [SHELL, "-c", _BACKGROUND if background else _FOREGROUND, *run, *arguments]


def package_root() -> str:
    """Return the folder that contains this package."""
    return str(Path(_version.__file__).resolve().parent.parent)


def environment() -> dict[str, str]:
    """Return this process's environment without the variables of debuggers and profilers and of this kernel. Folders
    are absolute, as the new process has another working directory."""
    return {name: _meant(name, value) for name, value in os.environ.items() if _goes_along(name, value)}


def _meant(name: str, value: str) -> str:
    return os.path.abspath(value) if _FOLDER.match(name) and value and not value.startswith("~") else value


def _goes_along(name: str, value: str) -> bool:
    if _WATCHERS.match(name) or _THIS_KERNEL.match(name):
        return False
    if name == "PYTHONHOME":  # set to another Python's home, it makes this interpreter fail at startup
        return not sys.flags.ignore_environment and value.split(os.pathsep)[0] in (sys.base_prefix, sys.prefix)
    return name in _KEPT or not _INTERPRETER.match(name)


def _flags() -> list[str]:
    """Return the flags that decide where this interpreter finds packages; `-P` excludes the working directory."""
    asked = {"-E": sys.flags.ignore_environment, "-s": sys.flags.no_user_site, "-S": sys.flags.no_site}
    return ["-P", *(flag for flag, is_set in asked.items() if is_set)]


# Start one engine's process and wait until it is ready: report its step each second, fail with a message, never hang.
# Knows nothing of the registry or of other processes that start the same engine.

LAST_LINES: Final = 15
TICK_SECONDS: Final = 1.0
BEGIN_SECONDS: Final = 60.0  # for Python to start and import msgspec, also from a slow network file system
QUIET_SECONDS: Final = 30.0  # without a new line; after that each second also shows the activity of the process
STUCK_SECONDS: Final = 180.0  # without a new line, and without computing, reading or writing
END_SECONDS: Final = 3.0  # between SIGTERM and SIGKILL
RUN_ENGINE: Final = "from djinn_jupyter.engine.__main__ import main; sys.exit(main())"
Tell = Callable[[str], None]


class Spawn(Protocol):
    """A way to start the process, which returns the number of its process group."""

    def __call__(self, arguments: list[str], *, log: Log, keep_open: tuple[int, ...]) -> int: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class StartCallbacks:
    """Callbacks for the progress of a start: `line` for each new step, `second` each second for the present one."""

    line: Tell
    second: Tell


def start(name: str, arguments: list[str], *, log: Log, keep_open: tuple[int, ...], told: StartCallbacks) -> Entry:
    """Start an engine and return its entry when it is ready. EngineStartFailed, or the engine's own error. Any
    exception, an interrupt included, ends the started process."""
    return _ready(name, arguments, _spawn, log=log, keep_open=keep_open, told=told)


class ChildEngine:
    """An engine that is a child of this process and ends with it, however it ends: the engine notices that a pipe is
    closed."""

    def __init__(self, name: str, arguments: list[str], *, log: Log, told: StartCallbacks) -> None:
        """Start it and wait until it is ready; raises like `start`."""
        held, self._end_of_pipe = os.pipe()
        try:
            words = [*arguments, f"--parent-pipe={held}"]
            self.entry = _ready(name, words, self._spawn, log=log, keep_open=(held,), told=told)
        except BaseException:
            os.close(self._end_of_pipe)
            raise
        finally:
            os.close(held)

    def _spawn(self, arguments: list[str], *, log: Log, keep_open: tuple[int, ...]) -> int:
        self._process = _popen(arguments, log=log, keep_open=keep_open, background=False)
        return self._process.pid

    def wait(self) -> int:
        """Wait until it has ended; return its exit status."""
        return self._process.wait()

    def end(self, seconds: float) -> None:
        """End it in order; after so many seconds its process is killed."""
        os.close(self._end_of_pipe)
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def _ready(
    name: str, arguments: list[str], spawn: Spawn, *, log: Log, keep_open: tuple[int, ...], told: StartCallbacks
) -> Entry:
    reader, writer = os.pipe()
    try:
        group = spawn([*arguments, f"--launcher-pipe={writer}"], log=log, keep_open=(writer, *keep_open))
    except BaseException:
        os.close(reader)
        raise
    finally:
        os.close(writer)
    try:
        return _Wait(name, reader, log, told).entry()
    except BaseException:
        _end(group, reader)
        raise
    finally:
        os.close(reader)


def _spawn(arguments: list[str], *, log: Log, keep_open: tuple[int, ...]) -> int:
    """Start the engine; return the number of its process group, which is also that of its OS session."""
    shell = _popen(arguments, log=log, keep_open=keep_open, background=True)
    try:
        shell.wait()
    except BaseException:
        os.killpg(shell.pid, signal.SIGKILL)  # no request has reached the engine yet
        raise
    return shell.pid


def _popen(arguments: list[str], *, log: Log, keep_open: tuple[int, ...], background: bool) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        command(RUN_ENGINE, *arguments, background=background),
        stdin=subprocess.DEVNULL,
        stdout=log.descriptor,
        stderr=log.descriptor,
        pass_fds=keep_open,
        cwd="/",
        env=environment(),
        start_new_session=True,
    )


class Log:
    """The part of an engine's log file that this start writes."""

    def __init__(self, path: Path, descriptor: int) -> None:
        self.path, self.descriptor = path, descriptor
        self._beginning = os.fstat(descriptor).st_size

    def last_lines(self, count: int = LAST_LINES) -> str:
        with self.path.open("rb") as log:
            log.seek(self._beginning)
            lines = log.read().decode(errors="replace").splitlines()
        return "\n".join(lines[-count:]) or "(it wrote nothing)"


class _Wait:
    """Receive the notices of one starting engine. Times are of the monotonic clock."""

    def __init__(self, name: str, reader: int, log: Log, told: StartCallbacks) -> None:
        self._name, self._reader, self._log, self._told = name, reader, log, told
        self._pid: int | None = None
        self._step = f"starting the engine of {name}"
        self._began = self._step_began = time.monotonic()
        self._activity = _Activity()

    def entry(self) -> Entry:
        failed: StartFailed | None = None
        self._told.second(self._step)
        for notice in self._notices():
            match notice:
                case Started(pid=pid):
                    self._pid = pid
                case Progressed(line=line):
                    self._told.line(line)
                    self._step, self._step_began = line, time.monotonic()
                case Ready(entry=entry):
                    return entry
                case StartFailed():
                    failed = notice
        if failed is not None:
            raise from_code(failed.code, failed.message)
        raise self._failure("ended before it was ready")

    def _notices(self) -> Iterator[Notice]:
        """Yield notices until the engine's end of the pipe is closed, calling `_second` once a second."""
        poll, rest = select.poll(), b""
        poll.register(self._reader, select.POLLIN)
        due = time.monotonic() + TICK_SECONDS
        while True:
            if poll.poll(max(0.0, due - time.monotonic()) * 1000):
                received = os.read(self._reader, 2**16)
                if not received:
                    return
                *lines, rest = (rest + received).split(b"\n")
                yield from map(decode_notice, lines)
            if time.monotonic() >= due:
                due += TICK_SECONDS
                self._second()

    def _second(self) -> None:
        now = time.monotonic()
        since = now - self._step_began
        if self._pid is None:
            if now - self._began > BEGIN_SECONDS:
                raise self._failure(f"has not begun within {BEGIN_SECONDS:.0f} s")
        elif self._activity.still_for(self._pid, now) > STUCK_SECONDS and since > STUCK_SECONDS:
            raise self._failure(f"has neither computed nor read or written anything for {STUCK_SECONDS:.0f} s")
        beside = "" if since < QUIET_SECONDS else f"; {self._activity} See {self._log.path}"
        self._told.second(f"{self._step} ({since:.0f} s{beside})")

    def _failure(self, what: str) -> EngineStartFailed:
        return EngineStartFailed(
            f"The engine of {self._name} {what}. Its last lines, of {self._log.path}:\n{self._log.last_lines()}"
        )


class _Activity:
    """The progress of a process: CPU time used, bytes read and written."""

    def __init__(self) -> None:
        self._last: tuple[float, int] | None = None
        self._changed = time.monotonic()

    def still_for(self, pid: int, now: float) -> float:
        """Return the seconds since the last change of these figures."""
        reading = _reading(pid)
        if reading != self._last:
            self._last, self._changed = reading, now
        return now - self._changed

    def __str__(self) -> str:
        if self._last is None:
            return "its process cannot be looked at."
        seconds, moved = self._last
        return f"its process has computed for {seconds:.0f} s and moved {spell_bytes(moved)} of files."


def _reading(pid: int) -> tuple[float, int] | None:
    try:
        process = psutil.Process(pid)
        times = process.cpu_times()
        io = process.io_counters() if hasattr(process, "io_counters") else None  # there are none on macOS
    except psutil.Error:
        return None
    chars = (io.read_bytes + io.write_bytes + getattr(io, "read_chars", 0) + getattr(io, "write_chars", 0)) if io else 0
    return times.user + times.system, chars


def _end(group: int, reader: int) -> None:
    """End the started process group, SIGTERM then SIGKILL, and return when it has gone: its end of the pipe closes."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with suppress(ProcessLookupError):
            os.killpg(group, number)
        deadline = time.monotonic() + END_SECONDS
        poll = select.poll()
        poll.register(reader, select.POLLIN)
        while (left := deadline - time.monotonic()) > 0:
            if poll.poll(left * 1000) and not os.read(reader, 2**16):
                return
