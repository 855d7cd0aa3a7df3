"""The caller's side of a baseline: start its process, send one request at a time. JSON lines, in and out."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from djinn_jupyter.errors import DjinnError

LEAST_VOCABULARY = 32


class BaselineFailed(DjinnError):
    """A baseline did not start, ended, or answered with an error."""


class Baseline:
    """The process of one module that answers requests; `folders` are its path where the module is not installed."""

    def __init__(self, module: str, *, python: Path | str = sys.executable, folders: Sequence[Path] = ()) -> None:
        found = {"PYTHONPATH": os.pathsep.join(map(str, folders))} if folders else {}
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115  closed with the baseline
        self.process = subprocess.Popen(
            [str(python), "-m", module],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            env={**os.environ, **found},
            text=True,
        )

    def ask(self, verb: str, **arguments: Any) -> dict[str, Any]:
        assert self.process.stdin is not None and self.process.stdout is not None  # noqa: PT018  narrows both
        try:
            self.process.stdin.write(json.dumps({"verb": verb, **arguments}) + "\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            pass  # it has ended; the empty answer below says so
        line = self.process.stdout.readline()
        if not line:
            raise BaselineFailed(f"The baseline ended with status {self.process.wait()}: {self._last_words()}")
        reply: dict[str, Any] = json.loads(line)
        if "error" in reply:
            raise BaselineFailed(f"The baseline failed: {reply['error']}")
        return reply

    def close(self, *, at_once: bool = False) -> None:
        """Close the worker's input, at which it ends, and wait for it; `at_once` kills it even within an answer."""
        assert self.process.stdin is not None
        if at_once:
            self.process.kill()
        try:
            self.process.stdin.close()
        except BrokenPipeError:
            pass  # it has ended, and no process reads the rest
        self.process.wait()
        self._errors.close()

    def _last_words(self) -> str:
        self._errors.seek(0)
        return self._errors.read().decode(errors="replace").strip().rpartition("\n")[2] or "it said nothing."


@contextmanager
def baseline(module: str) -> Iterator[Baseline]:
    made = Baseline(f"{__package__}.{module}")
    try:
        yield made
    except BaseException:
        made.close(at_once=True)
        raise
    made.close()


def any_prompt(length: int) -> list[int]:
    """Return `length` token ids that every vocabulary has."""
    return [1 + position % (LEAST_VOCABULARY - 1) for position in range(length)]
