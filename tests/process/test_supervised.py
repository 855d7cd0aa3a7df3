"""An engine that a signal ended comes back with its sessions, and every client is told of the signal."""

from __future__ import annotations

import asyncio
import logging
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import djinn_jupyter as dj
from djinn_jupyter.errors import EngineUnavailable
from djinn_jupyter.link.registry import running_engines
from djinn_jupyter.remote.addresses import entry_at, read_address
from djinn_jupyter.remote.connection import open_connection
from djinn_jupyter.wire import requests as ask
from djinn_jupyter.wire.logs import ended_in_order, reason_of_end
from djinn_jupyter.wire.registry import Entry
from djinn_jupyter.wire.replies import Finished, Opened
from tests.process.conftest import ROOT
from tests.waiting import until

pytestmark = [pytest.mark.usefixtures("runtime", "keys"), pytest.mark.processes]
HOW = {signal.SIGSEGV: "Segmentation fault", signal.SIGABRT: "Aborted", signal.SIGKILL: "killed, or out of memory"}


class Serving:
    def __init__(self, folder: Path) -> None:
        self.said = (folder / "said").open("w+")
        words = [
            sys.executable,
            "-c",
            "import sys; from djinn_jupyter.cli.main import main; sys.exit(main())",
            "serve",
            "demo",
            "--listen",
            "tcp://127.0.0.1:*",
        ]
        self.process = subprocess.Popen([*words, "--threads", "1"], cwd=ROOT, stdout=self.said, stderr=self.said)

    def engine(self, number: int) -> Entry:
        """Return the engine once it is the one of that number that is served."""

        def served() -> bool:
            said = Path(self.said.name).read_text()
            assert self.process.poll() is None, said
            return said.count(" listens on ") == number

        until(served, "an engine is served")
        return running_engines()[0]


@pytest.fixture
def serving(tmp_path: Path) -> Iterator[Serving]:
    serving = Serving(tmp_path)
    yield serving
    serving.process.terminate()
    serving.process.wait(120)
    serving.said.close()


async def test_an_engine_that_a_signal_ends_is_served_anew_with_its_sessions_three_times_an_hour(
    serving: Serving, caplog: pytest.LogCaptureFixture
) -> None:
    first = serving.engine(1)
    if sys.platform == "linux":  # what serves is small, and without what fails an engine
        mapped = Path(f"/proc/{serving.process.pid}/maps").read_text()
        assert "python" in mapped
        assert not re.search("zmq|torch|numpy", mapped)
    ada = await open_connection(entry_at(read_address(first.listens), "ada"), holder="k", user="ada")
    assert isinstance(await ada.ask(ask.Open(session="kept")), Opened)
    run = ask.Run(session="kept", tokens=(5, 6, 7), max_new_tokens=3, ignore_eos=True)
    assert isinstance(await ada.ask(run), Finished)
    local = dj.load("demo")
    ended = first
    for times, (number, how) in enumerate(HOW.items(), start=2):
        caplog.clear()
        os.kill(ended.pid, number)
        again = await asyncio.to_thread(serving.engine, times)
        with caplog.at_level(logging.WARNING):
            [kept] = [one for one in (await ada.ask(ask.ListSessions())).sessions if one.name == "kept"]
        assert kept.tokens == 6
        assert again.listens == first.listens
        assert re.search(rf"was started anew.*a signal ended its process \({how}\)$", caplog.text.rstrip())
        ended = again
    with pytest.raises(EngineUnavailable, match=r"has ended.*Segmentation fault\); the last line of its log: \d"):
        local.sessions()
    os.kill(ended.pid, signal.SIGKILL)
    assert await asyncio.to_thread(serving.process.wait, 120) == 1
    assert Path(serving.said.name).read_text().count("The engine is started anew: a signal ended its process") == 3
    await ada.close()


def test_an_orderly_end_has_no_reason(tmp_path: Path) -> None:
    log = tmp_path / "x.log"
    begun = "2026 INFO djinn-jupyter 0.1.0, process 7, model demo\n2026 INFO Ready: demo in process 7\n"
    assert reason_of_end(log) is None
    for text, reason in (
        (begun + "2026 INFO Ended. ServiceStatistics()\n", None),
        ("2026 INFO djinn-jupyter 0.1.0, process 7, model demo\n2026 ERROR ModelNotFound: no\n", None),
        (begun, "(killed, or out of memory); the last line of its log: 2026 INFO Ready: demo in process 7"),
        (
            begun + "Assertion failed: x\nFatal Python error: Aborted\n\nThread\n",
            "(Aborted); the last line of its log: Ass",
        ),
        (begun + "2026 INFO Ended. it\n" + begun, "(killed"),
    ):
        log.write_text(text)
        found = reason_of_end(log)
        assert found is None if reason is None else reason in str(found)
        assert ended_in_order(log, 7) == text.endswith("Ended. ServiceStatistics()\n")
        if "ModelNotFound" not in text:  # a process that served is asked for by its number
            assert reason_of_end(log, 7) == found
