from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from djinn_jupyter.api import loading
from djinn_jupyter.api.engine import await_end
from djinn_jupyter.link.registry import running_engines
from djinn_jupyter.remote import addresses as own

ROOT = Path(__file__).parents[2]


@pytest.fixture
def runtime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A registry and a user data folder of one's own. Any engine left in it at the end is ended."""
    folder = tmp_path / "runtime"
    monkeypatch.setenv("JUPYTER_RUNTIME_DIR", str(folder))
    monkeypatch.setenv("JUPYTER_DATA_DIR", str(tmp_path / "data"))  # journals and checkpoints
    monkeypatch.delenv("JPY_SESSION_NAME", raising=False)
    yield folder
    for entry in running_engines():
        os.kill(entry.pid, signal.SIGTERM)
        await_end(entry)
    loading._channels.close()


@pytest.fixture
def fake_site(runtime: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Engine processes that are started now serve the in-memory engine."""
    site = Path(__file__).parent / "fake_site"
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(site), str(ROOT)]))
    return runtime


@pytest.fixture
def slow_model(tmp_path: Path) -> Path:
    """A model whose engine writes into the pipe `begun` when it loads, and loads until a test writes into `go`."""
    folder = tmp_path / "slow"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    for name in ("begun", "go"):
        os.mkfifo(folder / name)
    return folder


@pytest.fixture
def keys(runtime: Path) -> None:
    """Ada is drawn and admitted, in the folder of this user, who is on both sides."""
    own.draw_own("ada")
    folder = own.key_folder()
    folder.allow(folder.own("ada").public, "ada")
    folder.trust("127.0.0.1", own.of_engines_here().public)
