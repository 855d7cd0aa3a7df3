"""Programs that run beside this process for as long as it wants them: ssh, and the one that asks a cluster. Both tell
of an engine by notices (wire/registry.py)."""

from __future__ import annotations

import subprocess
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import IO, Final

from djinn_jupyter.client.engines.starting import StartCallbacks
from djinn_jupyter.errors import MalformedMessage, from_code
from djinn_jupyter.wire.registry import Entry, Notice, Progressed, Ready, StartFailed, StillStarting, decode_notice

END_SECONDS: Final = 2.0  # between SIGTERM and SIGKILL


@contextmanager
def running(command: list[str], errors: IO[bytes]) -> Iterator[subprocess.Popen[bytes]]:
    """Run a program, out of reach of the terminal's interrupts, and end it with the block."""
    program = started(command, errors)
    try:
        yield program
    finally:
        end(program)


def started(command: list[str], errors: IO[bytes]) -> subprocess.Popen[bytes]:
    """Start a program. FileNotFoundError where there is none."""
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
    """Return what a program has written to standard error so far."""
    errors.seek(0)
    return errors.read().decode(errors="replace")


def entry_told(lines: Iterable[bytes], told: StartCallbacks) -> Entry | None:
    """Return the entry that a program's output tells of; None where it ended without. The error of a failed start."""
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
    """Return a notice; None for a line of a shell's own, which prints what its user wishes."""
    try:
        return decode_notice(line)
    except MalformedMessage:
        return None
