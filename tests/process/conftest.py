from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from djinn_jupyter.link import starting
from tests.engines import admit, end_all
from tests.process.nursery import spawn

ROOT = Path(__file__).parents[2]


@pytest.fixture
def runtime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A registry and a user data folder of one's own. Any engine left in it at the end is ended."""
    folder = tmp_path / "runtime"
    monkeypatch.setenv("JUPYTER_RUNTIME_DIR", str(folder))
    monkeypatch.setenv("JUPYTER_DATA_DIR", str(tmp_path / "data"))  # journals and checkpoints
    monkeypatch.delenv("JPY_SESSION_NAME", raising=False)
    yield folder
    end_all()


@pytest.fixture
def forked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Engines that this process starts are forked: how they start is not what the test is about."""
    monkeypatch.setattr(starting, "_spawn", spawn)


@pytest.fixture
def fake_site(runtime: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Engine processes that are started now serve the in-memory engine."""
    site = Path(__file__).parent / "fake_site"
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(site), str(ROOT)]))
    return runtime


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a tiny random Llama."""
    from tests.families import build

    folder = tmp_path_factory.mktemp("llama")
    build("llama").save_pretrained(folder)
    return folder


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
    admit("ada")
