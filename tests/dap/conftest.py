from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from queue import SimpleQueue

import pytest

import djinn_jupyter as dj
from djinn_jupyter.api import loading
from djinn_jupyter.api.engine import RemoteEngine
from djinn_jupyter.editors.dap.serving import serve_port
from tests.dap.editor import SECONDS, Editor, on_port
from tests.engines import end_engines


@contextmanager
def found_in(registry: Path) -> Iterator[None]:
    """Find and start engines in this registry alone."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JUPYTER_RUNTIME_DIR", str(registry))
        yield


@pytest.fixture(scope="session")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The registry of the engine that all modules here share; tests of other folders run between them."""
    folder = tmp_path_factory.mktemp("r")
    yield folder
    with found_in(folder):
        end_engines()


@pytest.fixture(scope="module")
def engine(registry: Path) -> Iterator[RemoteEngine]:
    """The demo model's engine, which the first module starts and each enters; each test has sessions of its own."""
    with found_in(registry):
        yield dj.load("demo", threads=1)
        loading._channels.close()


@pytest.fixture
def doomed(tmp_path: Path) -> Iterator[RemoteEngine]:
    """An engine that a test may kill."""
    with found_in(tmp_path):
        yield dj.load("demo", threads=1)
        end_engines()


@pytest.fixture(scope="module")
def port(engine: RemoteEngine) -> tuple[int, str]:
    """The port of an adapter that listens in this process, and its token."""
    return served()


def served(**how: float) -> tuple[int, str]:
    """Serve adapters on a free port of this process; return it and the token."""
    told: SimpleQueue[tuple[int, str]] = SimpleQueue()
    given = (0, lambda *both: told.put(both))
    threading.Thread(target=serve_port, args=given, kwargs=how, daemon=True).start()
    return told.get(timeout=SECONDS)


@pytest.fixture
def editor(port: tuple[int, str]) -> Iterator[Editor]:
    made = on_port(*port)
    yield made
    made.leave()
