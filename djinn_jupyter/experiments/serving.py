"""An engine of this run's own: a real process, reached through the public client, that nobody else shares."""

from __future__ import annotations

import os
import random
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import djinn_jupyter as dj
from djinn_jupyter.client.engine import RemoteEngine
from djinn_jupyter.client.loading import attach
from djinn_jupyter.experiments.course import Course

_PLACES = ("JUPYTER_RUNTIME_DIR", "JUPYTER_DATA_DIR")


@contextmanager
def engine_for(course: Course, model: str, **options: Any) -> Iterator[RemoteEngine]:
    """Start the engine of `model`, and end it with the block. Its registry and its sessions are this run's alone."""
    with private_jupyter():
        course.tell(f"Starting the engine of {course.place.named(model)}")
        try:
            yield dj.load(model, progress=course.tell, **course.place.words(), **options)
        finally:
            for entry in dj.engines():
                attach(entry).stop(force=True)


@contextmanager
def private_jupyter() -> Iterator[None]:
    """Engines that the user has running are neither seen nor met."""
    before = {name: os.environ.get(name) for name in _PLACES}
    with tempfile.TemporaryDirectory(prefix="djinn-", ignore_cleanup_errors=True) as home:
        os.environ.update({name: f"{home}/{name[8:].lower()}" for name in _PLACES})
        try:
            yield
        finally:
            for name, value in before.items():
                if value is None:
                    os.environ.pop(name, None)
                else:
                    os.environ[name] = value


def prompt_of(engine: RemoteEngine, length: int, seed: int) -> list[int]:
    """So many random token ids."""
    return random.Random(seed).choices(range(engine.description.vocab_size), k=length)
