"""A trained module: its folder, and its record there."""

from __future__ import annotations

import json
import signal
import subprocess
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Final

import msgspec
import numpy as np

from djinn_jupyter.api import arguments
from djinn_jupyter.api.interrupts import interruptible
from djinn_jupyter.api.result import STRONGEST
from djinn_jupyter.api.result_files import FolderResult
from djinn_jupyter.api.tables import Tabular, strongest
from djinn_jupyter.errors import TrainingFailed, UsageError, from_code
from djinn_jupyter.link import starting
from djinn_jupyter.link.waiting import far
from djinn_jupyter.modules.training.jobs import AnyJob, Line, TrainingEnded, TrainingProgressed, TrainingRefused

PROVENANCE: Final = "provenance.json"
VECTOR: Final = "vector.npy"


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainedModule(FolderResult, Tabular):
    """A module in a `folder` for `engine.add_module`. `figures` measure its quality, by name. `provenance` is the
    recipe: the call, the collection with its model and prompts, the versions, and for an interrupted training the
    number of steps done."""

    folder: Path
    site: str
    kind: str
    figures: dict[str, float]
    provenance: dict[str, Any]

    @property
    def recipe(self) -> dict[str, Any]:
        """All that its numbers follow from: its provenance."""
        return self.provenance

    @classmethod
    @arguments.typed
    def read(cls, path: str | Path) -> TrainedModule:
        """Read the folder of a trained module. UsageError where no training wrote it."""
        folder = arguments.given_path(path, "folder")
        try:
            asked = json.loads((folder / PROVENANCE).read_text(encoding="utf-8"))["training"]
            return module_in(folder, asked["site"], asked["job"].replace("_", " "))
        except FileNotFoundError:
            raise UsageError(f"There is no trained module in {folder}.") from None
        except (KeyError, TypeError, ValueError, AttributeError):
            raise UsageError(f"{folder} has a {PROVENANCE} that no training of Djinn wrote.") from None

    def columns(self) -> dict[str, list[Any]]:
        """Return the figures as lists by column: name and value."""
        return {"figure": list(self.figures), "value": list(self.figures.values())}

    @arguments.typed
    def top(self, count: int = STRONGEST) -> list[tuple[str, float]]:
        """Return (name, value) of the `count` figures of largest magnitude, the largest first. UsageError."""
        return strongest(self.figures.items(), count)

    @property
    def vector(self) -> np.ndarray[Any, Any]:
        """The vector of a steering vector, [features], float32, for `dj.add`. UsageError for another kind."""
        if not (self.folder / VECTOR).is_file():
            raise UsageError(f"{self.folder} has no vector, for its module is of kind {self.kind}.")
        found: np.ndarray[Any, Any] = np.load(self.folder / VECTOR, allow_pickle=False)
        return found

    def __repr__(self) -> str:
        figures = ", ".join(f"{name.replace('_', ' ')} {value:.3g}" for name, value in self.figures.items())
        return f"{self.kind} of {self.site} in {self.folder}{self.cut and f', {self.cut}'}: {figures}"

    @property
    def cut(self) -> str:
        """The step at which its training was interrupted, as text; empty for a whole one."""
        far = self.provenance.get("interrupted")
        return "" if far is None else f"interrupted at step {far['done']:,} of {far['of']:,}"


def module_in(folder: Path, site: str, kind: str) -> TrainedModule:
    """Return the module that a training has written."""
    said = json.loads((folder / PROVENANCE).read_text(encoding="utf-8"))
    return TrainedModule(folder=folder, site=site, kind=kind, figures=said.pop("figures"), provenance=said)


# The process that trains: started with a job, followed to its end, and ended with its caller.

RUN: Final = "from djinn_jupyter.modules.training.__main__ import main; main()"
OnTrained = Callable[[int, int, float], None]
"""It is called with the steps done, of how many, and the loss of the last."""


def train(job: AnyJob, on_progress: OnTrained | None) -> None:
    """Run a job. Raises its error; TrainingFailed where its process ended otherwise. An interrupt ends it with the
    present step, and WorkInterrupted has the module so far; a second one ends the process."""
    done, quiet = "its process was ended", on_progress is not None
    interrupts = interruptible("The training", lambda: _left_by(job), done=done, quiet=quiet)
    with interrupts, tempfile.TemporaryFile() as errors:
        process = subprocess.Popen(
            starting.command(RUN),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            env=starting.environment(),
            start_new_session=True,  # an interrupt from a terminal or a kernel's front end is for the caller only
        )
        told: list[TrainingProgressed] = []
        try:
            _follow(process, job, on_progress, errors, told)
        except KeyboardInterrupt:
            if told:
                process.send_signal(signal.SIGINT)
                _hear_out(process)
            raise
        finally:
            process.kill()
            process.communicate()


def _hear_out(process: subprocess.Popen[bytes]) -> None:
    assert process.stdout is not None
    for _ in process.stdout:
        pass


def _follow(
    process: subprocess.Popen[bytes],
    job: AnyJob,
    on_progress: OnTrained | None,
    errors: IO[bytes],
    told: list[TrainingProgressed],
) -> None:
    """Follow a job to its end; `told` has the last progress."""
    assert process.stdin is not None and process.stdout is not None
    try:
        process.stdin.write(msgspec.json.encode(job) + b"\n")
        process.stdin.flush()
    except BrokenPipeError:
        pass  # it has ended; its silence shows that
    for text in process.stdout:
        line = msgspec.json.decode(text, type=Line)
        if isinstance(line, TrainingProgressed):
            told[:] = [line]
            far(f"step {line.done:,} of {line.of:,}, loss {line.loss:.4g}")
            if on_progress is not None:
                on_progress(line.done, line.of, line.loss)
        elif isinstance(line, TrainingRefused):
            raise from_code(line.code, line.sentence)
        elif isinstance(line, TrainingEnded):
            return
    raise TrainingFailed(f"The process that trained ended with status {process.wait()}: {_last_words(errors)}")


def _left_by(job: AnyJob) -> tuple[str, TrainedModule | None]:
    """Return what the ended process left, in words and itself: it may have finished by then."""
    if not any(Path(job.to).glob("*")):
        return "Nothing was written.", None
    kept = module_in(Path(job.to), job.site, str(job.__struct_config__.tag).replace("_", " "))
    if not kept.cut:
        return f"It was done by then: the module is in {job.to}.", kept
    return f"`kept` of this error is the module so far, {kept.cut}, in {job.to}.", kept


def _last_words(errors: IO[bytes]) -> str:
    errors.seek(0)
    return errors.read().decode(errors="replace").strip().rpartition("\n")[2] or "it said nothing."
