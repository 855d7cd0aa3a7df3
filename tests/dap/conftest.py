from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from queue import SimpleQueue

import pytest

import djinn_jupyter as dj
from djinn_jupyter.client import loading
from djinn_jupyter.client.engine import RemoteEngine, await_end
from djinn_jupyter.client.engines.registry import running_engines
from djinn_jupyter.dap.serving import serve_port
from tests.dap.editor import SECONDS, Editor, on_port


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RemoteEngine]:
    """The demo model's engine, in a registry of its own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JUPYTER_RUNTIME_DIR", str(tmp_path_factory.mktemp("r")))
        yield dj.load("demo", threads=1)
        for entry in running_engines():
            os.kill(entry.pid, signal.SIGTERM)
            await_end(entry)
        loading._channels.close()


@pytest.fixture(scope="module")
def port(engine: RemoteEngine) -> int:
    """The port of an adapter that listens in this process."""
    told: SimpleQueue[int] = SimpleQueue()
    threading.Thread(target=serve_port, args=(0, told.put), daemon=True).start()
    return told.get(timeout=SECONDS)


@pytest.fixture
def editor(port: int) -> Iterator[Editor]:
    made = on_port(port)
    yield made
    made.leave()
