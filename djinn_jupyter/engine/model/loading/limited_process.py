"""A process of ours that answers questions one after the other, each within limits of time and memory: for work that
would hold the GIL, or that nothing else could interrupt.

    engine  --[8 bytes of length][the first message, then questions]-->  stdin of the process
    engine  <--[8 bytes of length][an answer]--                           its stdout

An alarm ends the process when a question takes too long, also after its engine is gone.
"""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import IO, Final, TypeVar

import msgspec

from djinn_jupyter.errors import DjinnError, EngineError, UsageError, from_code
from djinn_jupyter.units import spell_bytes
from djinn_jupyter.wire.base import Frozen

_LENGTH: Final = 8  # bytes
First = TypeVar("First", bound=Frozen)
Question = TypeVar("Question", bound=Frozen)
Answer = TypeVar("Answer", bound=Frozen)


class Limits(Frozen, frozen=True):
    """The limits of one answer: its seconds, and the bytes of main memory beyond the process's initial ones."""

    seconds: float
    memory: int


class Refused(Frozen, frozen=True, tag="Refused"):
    code: str
    message: str


class BeyondMemory(Frozen, frozen=True, tag="BeyondMemory"): ...


class LimitedProcess:
    """The process of a module that calls `serve`. Started by the first question, ended by `close` or with the engine.
    Its errors name what it `does`, what it had not `done`, and the remedy for a question beyond the limits."""

    def __init__(self, module: str, first: Frozen, limits: Limits, *, does: str, done: str, remedy: str) -> None:
        self._command = (sys.executable, "-P", "-m", module)
        self._first, self._limits, self._does, self._done, self._remedy = first, limits, does, done, remedy
        self._turn = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._closed = False

    def ask(self, question: Frozen, answer: type[Answer]) -> Answer:
        """Return the answer. UsageError where it exceeds the limits, EngineError where the process ends before it has
        answered, and its own errors."""
        with self._turn:
            begins = () if self._process else (self._limits, self._first)
            process = self._started()
            assert process.stdin is not None and process.stdout is not None
            try:
                for message in (*begins, question):
                    _write(process.stdin, message)
                given: Answer | Refused | BeyondMemory = msgspec.msgpack.decode(
                    _read(process.stdout), type=answer | Refused | BeyondMemory
                )
            except (OSError, EOFError):
                raise self._ended(process) from None
        if isinstance(given, BeyondMemory):
            raise self._beyond(f"{spell_bytes(self._limits.memory)} of main memory")
        if isinstance(given, Refused):
            raise from_code(given.code, given.message)
        return given

    def close(self) -> None:
        """End the process, even during a question. May be called from any thread."""
        self._closed = True
        process = self._process
        if process is not None:
            process.kill()
            process.wait()

    def _started(self) -> subprocess.Popen[bytes]:
        if self._process is None and not self._closed:
            self._process = subprocess.Popen(self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd="/")
        if self._process is None or self._closed:
            raise EngineError("The engine has been stopped.")
        return self._process

    def _ended(self, process: subprocess.Popen[bytes]) -> DjinnError:
        self._process = None
        code = process.wait()
        if code == -signal.SIGALRM:
            return self._beyond(f"{self._limits.seconds:g} s")
        how = signal.Signals(-code).name if code < 0 else f"exit code {code}"
        return EngineError(
            f"The process that {self._does} ended ({how}) before it had {self._done}; ask again, and %djinn_log says "
            "more."
        )

    def _beyond(self, limit: str) -> UsageError:
        return UsageError(f"The process that {self._does} had not {self._done} within {limit}; {self._remedy}.")


def serve(first: type[First], question: type[Question], begin: Callable[[First], Callable[[Question], Frozen]]) -> None:
    """Answer the questions on stdin until the engine closes the pipe or ends; `begin` makes the answering function from
    the first message. Libraries' prints go to the engine's log: the answers have their own descriptor."""
    questions, answers = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    limits = msgspec.msgpack.decode(_read(questions), type=Limits)
    answer = begin(msgspec.msgpack.decode(_read(questions), type=first))
    _limit_memory(limits.memory)
    while True:
        try:
            asked = msgspec.msgpack.decode(_read(questions), type=question)
        except EOFError:
            return
        _write(answers, _answered(answer, asked, limits))


def _answered(answer: Callable[[Question], Frozen], asked: Question, limits: Limits) -> Frozen:
    signal.setitimer(signal.ITIMER_REAL, limits.seconds)
    try:
        return answer(asked)
    except DjinnError as error:
        return Refused(code=error.code, message=str(error))
    except MemoryError:
        return BeyondMemory()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def _limit_memory(beyond: int) -> None:
    """Limit the addresses of this process to its present ones and so many bytes more, where the system shows them."""
    try:
        with open("/proc/self/statm") as file:
            present = int(file.read().split()[0]) * resource.getpagesize()
    except OSError:
        return
    _, most = resource.getrlimit(resource.RLIMIT_AS)
    limit = present + beyond
    resource.setrlimit(resource.RLIMIT_AS, (limit if most == resource.RLIM_INFINITY else min(limit, most), most))


def _write(pipe: IO[bytes], message: Frozen) -> None:
    body = msgspec.msgpack.encode(message)
    pipe.write(len(body).to_bytes(_LENGTH, "big") + body)
    pipe.flush()


def _read(pipe: IO[bytes]) -> bytes:
    length = int.from_bytes(_exactly(pipe, _LENGTH), "big")
    return _exactly(pipe, length)


def _exactly(pipe: IO[bytes], count: int) -> bytes:
    content = pipe.read(count)
    if len(content) < count:
        raise EOFError
    return content
