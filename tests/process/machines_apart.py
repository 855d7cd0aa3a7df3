"""Engine processes on machines of their own, as far as files go: each has a registry and user data of its own. What
they have in common is in their options."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import djinn_jupyter as dj
from djinn_jupyter.api import loading
from djinn_jupyter.api.engine import RemoteEngine, await_end
from djinn_jupyter.link import starting
from tests.engines import end_all
from tests.process.nursery import spawn

PROMPT = [1, 5, 6, 7, 8]
Start = Callable[[str], RemoteEngine]
Machine = Callable[..., RemoteEngine]


@contextmanager
def machines_apart(model: Path, home: Path, monkeypatch: pytest.MonkeyPatch, **common: str) -> Iterator[Machine]:
    """Yield what starts an engine of the model, with options, on the machine of a name."""
    machines: set[str] = set()
    monkeypatch.setattr(starting, "_spawn", spawn)

    def on(machine: str) -> None:
        machines.add(machine)
        monkeypatch.setenv("JUPYTER_RUNTIME_DIR", str(home / machine / "runtime"))
        monkeypatch.setenv("JUPYTER_DATA_DIR", str(home / machine / "data"))

    def start(machine: str, **options: Any) -> RemoteEngine:
        on(machine)
        return dj.load(model, dtype="float32", device="cpu", threads=1, **common, **options)

    yield start
    for machine in tuple(machines):
        on(machine)
        end_all()


def killed(engine: RemoteEngine) -> None:
    """End the engine's process by SIGKILL, and forget this process's lines to engines."""
    os.kill(engine.entry.pid, signal.SIGKILL)
    await_end(engine.entry)
    loading._channels.close()
