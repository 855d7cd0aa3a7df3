"""Engine processes that begin in a tenth of the time: forked from one that has imported torch and computed nothing.

As a program it reads lines of arguments for `python -m djinn_jupyter.engine`, forks an engine for each, and answers
with the entry under which that engine can be found.
"""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


class Nursery:
    """The forking process, seen from a test."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, __file__],
            env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def start(self, *arguments: str) -> str:
        """An engine that answers; the notice in which it said so."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(shlex.join(arguments) + "\n")
        self._process.stdin.flush()
        return self._process.stdout.readline()

    def end(self) -> None:
        self._process.stdin.close()  # type: ignore[union-attr]
        self._process.wait(30)
        self._process.stdout.close()  # type: ignore[union-attr]


def _serve() -> None:
    import torch

    from djinn_jupyter.engine import opening  # noqa: F401  what every engine imports

    torch.set_num_threads(1)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    for line in sys.stdin:
        reader, writer = os.pipe()
        os.set_inheritable(writer, True)
        if os.fork() == 0:
            _become_an_engine([*shlex.split(line), f"--launcher-pipe={writer}"])
        os.close(writer)
        with os.fdopen(reader) as notices:
            sys.stdout.write(list(notices)[-1])
        sys.stdout.flush()


def _become_an_engine(arguments: list[str]) -> None:
    from djinn_jupyter.engine.__main__ import main

    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.setsid()
    os._exit(main(arguments))


if __name__ == "__main__":
    _serve()
