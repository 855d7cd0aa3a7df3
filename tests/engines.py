"""Engine processes that a test starts: in a registry of its own, by keys of its own, and ended with it."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from djinn_jupyter.api import loading
from djinn_jupyter.api.engine import await_end
from djinn_jupyter.link import starting
from djinn_jupyter.link.registry import running_engines
from djinn_jupyter.remote import addresses as own
from djinn_jupyter.wire.keys import KeyFolder
from tests.process.nursery import spawn


def end_engines() -> None:
    for entry in running_engines():
        os.kill(entry.pid, signal.SIGTERM)
        await_end(entry)


def end_all() -> None:
    """End the engines of the registry, and this process's lines to engines."""
    end_engines()
    loading._channels.close()


@contextmanager
def own_registry(place: Path) -> Iterator[None]:
    """Start and find engines below this folder alone, their journals and checkpoints too; end them in the end. They
    are forked (`tests/process/nursery.py`): how one starts is not what their tests are about."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(starting, "_spawn", spawn)
        patch.setenv("JUPYTER_RUNTIME_DIR", str(place / "runtime"))
        patch.setenv("JUPYTER_DATA_DIR", str(place / "data"))
        patch.delenv("JPY_SESSION_NAME", raising=False)
        yield
        end_all()


def admit(*persons: str, hosts: tuple[str, ...] = ("127.0.0.1",)) -> KeyFolder:
    """Draw keys of persons in the folder of this user, who is on both sides, admit them and trust the engines here."""
    folder = own.key_folder()
    for person in persons:
        own.draw_own(person)
        folder.allow(folder.own(person).public, person)
    for host in hosts:
        folder.trust(host, own.of_engines_here().public)
    return folder
