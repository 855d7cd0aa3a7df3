"""The two ends of a baseline: its caller, and the process that answers in JSON lines. No numpy, no torch."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from djinn_jupyter.demo import MODEL_PATH
from djinn_jupyter.errors import DjinnError


def source_of(model: str) -> str:
    """Return the folder of `demo`; folders and hub names are returned unchanged."""
    return str(MODEL_PATH) if model == "demo" else model


def digest(logits: Any) -> str:
    """Return the digest of the bits of an array of fp32 logits; `baselines.weights.digest` makes that of a tensor."""
    return hashlib.sha256(logits.tobytes()).hexdigest()


def serve(*sides: type) -> None:
    """Answer by the methods of the side that the command names, or the first; a verb that raises answers its error."""
    side = next(side for side in sides if side.__name__ == (sys.argv[1:] or [sides[0].__name__])[0])()
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for line in sys.stdin:
        request = json.loads(line)
        try:
            reply = getattr(side, request.pop("verb"))(**request)
        except Exception as error:  # noqa: BLE001  the process's edge: the asker is told
            traceback.print_exc()
            reply = {"error": f"{type(error).__name__}: {error}"}
        replies.write(json.dumps(reply) + "\n")
        replies.flush()


LEAST_VOCABULARY = 32


class BaselineFailed(DjinnError):
    """A baseline did not start, ended, or answered with an error."""


class Baseline:
    """The process of `package.module` or `package.module.Side`; `folders` are its path where it is not installed."""

    def __init__(self, module: str, *, python: Path | str = sys.executable, folders: Sequence[Path] = ()) -> None:
        found = {"PYTHONPATH": os.pathsep.join(map(str, folders))} if folders else {}
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115  closed with the baseline
        self.process = subprocess.Popen(
            [str(python), "-m", *_command(module)],
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
            pass  # it has ended, as the empty answer below shows
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


def _command(module: str) -> list[str]:
    """Return a module and its class, if named."""
    name, _, side = module.rpartition(".")
    return [name, side] if side[0].isupper() else [module]


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
