"""Engine processes on machines of their own, as far as files go: each has a registry and user data of its own, and they
have one journal in common."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import djinn_jupyter as dj
from djinn_jupyter.client import loading
from djinn_jupyter.client.engine import RemoteEngine, await_end
from djinn_jupyter.client.engines.registry import running_engines

PROMPT = [1, 5, 6, 7, 8]
Start = Callable[[str], RemoteEngine]


def save_model(folder: Path) -> Path:
    from tests.families import build

    build("llama").save_pretrained(folder)
    return folder


@contextmanager
def machines_apart(model: Path, home: Path, monkeypatch: pytest.MonkeyPatch, journal: str) -> Iterator[Start]:
    """Yield what starts an engine of the model on the machine of a name."""
    machines: set[str] = set()

    def on(machine: str) -> None:
        machines.add(machine)
        monkeypatch.setenv("JUPYTER_RUNTIME_DIR", str(home / machine / "runtime"))
        monkeypatch.setenv("JUPYTER_DATA_DIR", str(home / machine / "data"))

    def start(machine: str) -> RemoteEngine:
        on(machine)
        return dj.load(model, dtype="float32", device="cpu", threads=1, shared_journal=journal)

    yield start
    for machine in tuple(machines):
        on(machine)
        for entry in running_engines():
            os.kill(entry.pid, signal.SIGTERM)
            await_end(entry)
    loading._channels.close()
