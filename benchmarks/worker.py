"""The asker's end of the line to a worker process (djinn_jupyter/experiments/baselines/answering.py)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]


class WorkerFailed(Exception):
    """A worker did not start, ended, or answered with an error."""


class Worker:
    """One process. Asks one thing at a time."""

    def __init__(self, module: str, python: Path | str = sys.executable) -> None:
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115  closed with the worker
        self._process = subprocess.Popen(
            [str(python), "-m", f"benchmarks.workers.{module}"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            text=True,
        )

    @property
    def pid(self) -> int:
        return self._process.pid

    def ask(self, verb: str, **arguments: Any) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps({"verb": verb, **arguments}) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            pass  # it has ended; the empty answer below says so
        line = self._process.stdout.readline()
        if not line:
            raise WorkerFailed(f"The worker ended: {self._last_words()}")
        reply: dict[str, Any] = json.loads(line)
        if "error" in reply:
            raise WorkerFailed(reply["error"])
        return reply

    def seconds(self, verb: str, **arguments: Any) -> float:
        return float(self.ask(verb, **arguments)["seconds"])

    def close(self) -> None:
        if self._process.stdin is not None:
            self._process.stdin.close()
        self._process.wait()
        self._errors.close()

    def _last_words(self) -> str:
        self._errors.seek(0)
        return self._errors.read().decode(errors="replace").strip().rpartition("\n")[2]


@contextmanager
def worker(module: str, python: Path | str = sys.executable) -> Iterator[Worker]:
    made = Worker(module, python)
    try:
        yield made
    finally:
        made.close()
