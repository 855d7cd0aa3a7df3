"""An engine on TCP to which strangers connect: they leave it descriptors, connected clients are served on, and new
ones."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

import djinn_jupyter as dj
from djinn_jupyter.api import loading
from djinn_jupyter.api.engine import RemoteEngine
from djinn_jupyter.link.registry import running_engines
from djinn_jupyter.remote.engine.lines import LEAST
from tests.process.conftest import ROOT
from tests.waiting import until

pytestmark = [pytest.mark.usefixtures("fake_site"), pytest.mark.processes]
LIMIT = 48


@pytest.fixture
def engine() -> Iterator[RemoteEngine]:
    """An engine started by hand, with few descriptors, on TCP."""
    run = "ulimit -n %d; exec %s -m djinn_jupyter.engine --model fake --listen tcp://127.0.0.1:*"
    process = subprocess.Popen(["bash", "-c", run % (LIMIT, sys.executable)], cwd=ROOT, stderr=subprocess.PIPE)
    assert process.stderr is not None
    while b"Ready" not in (line := process.stderr.readline()):
        assert line, "it has ended"
    yield dj.load("fake")
    process.terminate()
    process.wait(120)
    process.stderr.close()


def test_strangers_leave_descriptors_and_end_nobody(engine: RemoteEngine) -> None:
    assert engine.entry is not None
    session = engine.session("paris")
    host, _, port = (engine.entry.listens or "").removeprefix("tcp://").rpartition(":")
    pid = engine.entry.pid
    before = _descriptors(pid)
    with ExitStack() as strangers:
        for _ in range(2 * LIMIT):
            strangers.enter_context(socket.create_connection((host, int(port)), timeout=120))
        until(lambda: _descriptors(pid) > before, "letting some in")  # in its own time, the system long before
        for _ in range(20):
            assert session.run([1], max_new_tokens=2).tokens == (1, 2)
            assert _descriptors(pid) <= LIMIT - LEAST
    loading._channels.close()
    again = dj.load("fake")
    assert again.entry == engine.entry
    assert again.session("rome").run([1], max_new_tokens=2).tokens == (1, 2)
    assert running_engines() == (engine.entry,)


def _descriptors(pid: int) -> int:
    folder = Path(f"/proc/{pid}/fd")
    return len(os.listdir(folder)) if folder.exists() else LIMIT  # macOS has no such folder


def test_a_process_takes_as_many_descriptors_as_it_may() -> None:
    ask = "import resource; from djinn_jupyter.engine.system.process import allow_all; "
    ask += "resource.setrlimit(resource.RLIMIT_NOFILE, (50, 300)); print(allow_all())"
    assert subprocess.check_output([sys.executable, "-c", ask], cwd=ROOT, text=True).strip() == "300"
