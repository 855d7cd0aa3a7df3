"""Engine processes that begin in a tenth of the time: forked from one that has imported torch and computed nothing.

As a program it reads lines (a number, seconds that forcing to the disk takes, then arguments for `python -m
djinn_jupyter.engine`), forks so many engines at once, and answers with the entry under which each can be found.
"""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parents[2]


class Nursery:
    """The forking process, seen from a test."""

    def __init__(self, errors: Path | None = None) -> None:
        """`errors` is the file that their standard error goes to, if another than that of the test."""
        self._errors = None if errors is None else errors.open("ab")
        self._process = subprocess.Popen(
            [sys.executable, __file__],
            env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
        )

    def start(self, count: int, *arguments: str, forcing: float | None = None) -> list[str]:
        """Start engines at the same time; return the notices in which they said that they answer. They sleep `forcing`
        seconds instead of waiting for the disk."""
        self._process.stdin.write(shlex.join([str(count), str(forcing), *arguments]) + "\n")
        self._process.stdin.flush()
        return [self._process.stdout.readline() for _ in range(count)]

    def end(self) -> None:
        self._process.stdin.close()
        self._process.wait(120)
        self._process.stdout.close()
        if self._errors is not None:
            self._errors.close()


def _serve() -> None:
    import torch

    from djinn_jupyter.engine.process import build  # noqa: F401  what every engine imports

    torch.set_num_threads(1)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    for line in sys.stdin:
        count, forcing, *arguments = shlex.split(line)
        for reader in [_fork(arguments, forcing) for _ in range(int(count))]:
            with os.fdopen(reader) as notices:
                sys.stdout.write(list(notices)[-1])
            sys.stdout.flush()


def _fork(arguments: list[str], forcing: str) -> int:
    """Start an engine in a process of its own; return where its notices can be read."""
    reader, writer = os.pipe()
    if os.fork() == 0:
        if forcing != "None":
            os.fsync = os.fdatasync = lambda descriptor: time.sleep(float(forcing))
        _become_an_engine([*arguments, f"--launcher-pipe={writer}"])
    os.close(writer)
    return reader


def _become_an_engine(arguments: list[str]) -> None:
    from djinn_jupyter.engine.__main__ import main

    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.setsid()
    os._exit(main(arguments))


if __name__ == "__main__":
    _serve()
