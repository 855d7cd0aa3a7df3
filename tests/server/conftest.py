from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import jupyter_core.paths
import pytest

from tests.process.served import Served, registered, served
from tests.server.jupyter import Jupyter, jupyter_server


@pytest.fixture
def runtime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A registry, and a Jupyter, of one's own."""
    for name in ("RUNTIME", "CONFIG", "DATA"):
        monkeypatch.setenv(f"JUPYTER_{name}_DIR", str(tmp_path / name.lower()))
    monkeypatch.setattr(jupyter_core.paths, "ENV_CONFIG_PATH", [])  # whatever else is installed is not loaded
    monkeypatch.setattr(jupyter_core.paths, "SYSTEM_CONFIG_PATH", [])
    return tmp_path


@pytest.fixture
def root(runtime: Path) -> Path:
    """The folder that the Jupyter server shows."""
    folder = runtime / "root"
    (folder / "work").mkdir(parents=True)
    return folder


@pytest.fixture
def engine(runtime: Path) -> Iterator[Served]:
    """The in-memory engine behind a real service, in the registry."""
    with served(token_seconds=0.002) as serving:
        with registered(serving.entry):
            yield serving


@pytest.fixture
async def jupyter(root: Path) -> AsyncIterator[Jupyter]:
    async with jupyter_server(root) as server:
        yield server
