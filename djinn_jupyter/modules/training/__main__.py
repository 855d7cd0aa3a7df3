"""The process that trains: a job as JSON on its input, lines as JSON on its output."""

from __future__ import annotations

import signal
import sys
import time
from typing import TYPE_CHECKING, Final

import msgspec

from djinn_jupyter.errors import DjinnError
from djinn_jupyter.modules.training.jobs import AnyJob, Line, TrainingEnded, TrainingProgressed, TrainingRefused

if TYPE_CHECKING:
    from torch import Tensor


SECONDS_BETWEEN: Final = 0.2  # between two lines on progress


def main() -> None:
    reporter = _Reporter()
    signal.signal(signal.SIGINT, reporter.end)
    job = msgspec.json.decode(sys.stdin.buffer.readline(), type=AnyJob)
    try:
        from djinn_jupyter.modules.training.running import run
    except ImportError as error:
        _say(
            TrainingRefused(
                code="MissingDependency", sentence=f"Training needs PyTorch: {error}. pip install djinn-jupyter"
            )
        )
        return
    try:
        run(job, reporter)
    except DjinnError as error:
        _say(TrainingRefused(code=error.code, sentence=str(error)))
    else:
        _say(TrainingEnded())


class _Reporter:
    def __init__(self) -> None:
        self._said, self._ended = 0.0, False

    def end(self, *of_signal: object) -> None:
        """End the training with the present step."""
        self._ended = True

    def __call__(self, done: int, of: int, loss: Tensor) -> bool:
        now = time.monotonic()
        if done == of or now - self._said >= SECONDS_BETWEEN:
            self._said = now
            _say(TrainingProgressed(done=done, of=of, loss=float(loss.detach())))
        return self._ended


def _say(line: Line) -> None:
    sys.stdout.buffer.write(msgspec.json.encode(line) + b"\n")
    sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
