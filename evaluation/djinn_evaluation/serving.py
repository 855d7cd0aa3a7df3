"""The engine of a run, reached through the public client: a process of the run's own, shared with no other client, or
one that runs already."""

from __future__ import annotations

import os
import random
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import djinn_jupyter as dj
from djinn_evaluation.afar import is_afar, noted
from djinn_evaluation.attached import attached, engine_at
from djinn_evaluation.course import Course
from djinn_jupyter.api.engine import RemoteEngine
from djinn_jupyter.api.loading import attach

PLACES = ("JUPYTER_RUNTIME_DIR", "JUPYTER_DATA_DIR")


@contextmanager
def engine_for(course: Course, model: str, **options: Any) -> Iterator[RemoteEngine]:
    """Start the engine of `model`, and end it with the block. Its registry and its sessions are this run's alone. Where
    the setup names a server, that engine is attached to instead."""
    if course.setup.server is not None:
        course.tell(f"Attaching to the engine on {course.setup.server}")
        with attached(course.setup.server, model, **options) as running, noted(course, running):
            course.every_file["device"] = running.description.device
            yield running
        return
    with private_jupyter():
        course.tell(f"Starting the engine of {course.setup.named(model)}")
        try:
            engine = dj.load(model, progress=course.tell, **course.setup.words(), **options)
            course.every_file["device"] = engine.description.device
            yield engine
        finally:
            for entry in dj.engines():
                attach(entry).stop(force=True)


def reaches_over_a_line(course: Course) -> bool:
    """Return whether the run's engine is one that is reached over a line. Errors as of `dj.connect`."""
    return course.setup.server is not None and is_afar(engine_at(course.setup.server))


@contextmanager
def private_jupyter(places: Iterable[str] = PLACES, **variables: str) -> Iterator[Path]:
    """Hide the engines that the user has running: each environment variable of `places` names a folder of its own in
    the yielded one, and `variables` have these values. All are restored after the block."""
    before = {name: os.environ.get(name) for name in (*places, *variables)}
    with tempfile.TemporaryDirectory(prefix="djinn-", ignore_cleanup_errors=True) as home:
        os.environ.update({name: f"{home}/{_folder(name)}" for name in places}, **variables)
        try:
            yield Path(home)
        finally:
            for name, value in before.items():
                if value is None:
                    os.environ.pop(name, None)
                else:
                    os.environ[name] = value


def _folder(variable: str) -> str:
    """Return a short name: the path of a socket may have no more than about a hundred characters."""
    return variable.removeprefix("JUPYTER_").removesuffix("_DIR").lower()


def pids_of(engine: RemoteEngine) -> list[int]:
    """Return the processes of a run on our side: this one, and the engine's where it is on this machine."""
    assert engine.entry is not None
    return [os.getpid()] if is_afar(engine) else [os.getpid(), engine.entry.pid]


def prompt_of(engine: RemoteEngine, length: int, seed: int) -> list[int]:
    """Return `length` random token ids of the engine's vocabulary."""
    return random_tokens(length, engine.description.vocab_size, seed)


def random_tokens(length: int, vocabulary: int, seed: int = 1) -> list[int]:
    return random.Random(seed).choices(range(vocabulary), k=length)
