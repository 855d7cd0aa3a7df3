"""The whole way: a real kernel of a real server, a tiny random Llama in an engine process, and a window beside them."""

from __future__ import annotations

import asyncio
import base64
import json
import queue
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import djinn_jupyter as dj
from djinn_evaluation.machine import computed_on
from djinn_jupyter.link import starting
from tests.engines import end_all
from tests.process.nursery import spawn
from tests.server.jupyter import Json, Jupyter, jupyter_server

pytestmark = pytest.mark.processes

PROMPT = [1, 5, 6, 7, 8]
UNTIL_PAUSED = """
import djinn_jupyter as dj
from djinn_jupyter.link.naming import default_session_name
session = dj.load({model!r}, dtype="float32", device={device!r}, threads=1).session(default_session_name())
stop = None
while not isinstance(stop, dj.Paused):
    stop = session.run({prompt}, max_new_tokens=200, ignore_eos=True)
print(stop.reason, "at", stop.site)
"""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from tests.families import build

    folder = tmp_path_factory.mktemp("model")
    build("llama").save_pretrained(folder)
    return folder


@pytest.fixture
def engines_end(runtime: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(starting, "_spawn", spawn)
    yield
    end_all()


@pytest.fixture
async def jupyter(engines_end: None, root: Path) -> AsyncIterator[Jupyter]:
    async with jupyter_server(root) as server:
        yield server
        await server.app.cleanup_kernels()


class Kernel:
    """The kernel of a notebook, started as JupyterLab starts it."""

    def __init__(self, jupyter: Jupyter, number: str) -> None:
        self.jupyter, self.number = jupyter, number
        self.client = jupyter.app.kernel_manager.get_kernel(number).client()
        self.client.start_channels()

    @classmethod
    async def start(cls, jupyter: Jupyter, notebook: str) -> Kernel:
        asked = {"path": notebook, "name": Path(notebook).name, "type": "notebook", "kernel": {"name": "python3"}}
        session = json.loads((await jupyter.fetch("api/sessions", asked)).body)
        kernel = cls(jupyter, session["kernel"]["id"])
        await kernel.heard_by_the_server()
        return kernel

    async def heard_by_the_server(self) -> None:
        """A kernel's message before a client listens is lost; a server that missed a `busy` does not hear it again."""
        while self.jupyter.app.kernel_manager.kernel_model(self.number)["execution_state"] != "idle":
            asked = self.client.kernel_info()
            await self._until_idle(asked)

    async def _until_idle(self, asked: str) -> None:
        with suppress(queue.Empty):  # this client, too, may not have listened yet
            while True:
                message = await self.client.get_iopub_msg(timeout=1)
                if (
                    message["parent_header"].get("msg_id") == asked
                    and message["content"].get("execution_state") == "idle"
                ):
                    return

    async def printed(self, executed: str) -> str:
        """Return the cell's output when it ends; its error is raised here."""
        said = ""
        while True:
            message = await self.client.get_iopub_msg(timeout=120)
            if message["parent_header"].get("msg_id") != executed:
                continue
            content: dict[str, Any] = message["content"]
            assert message["msg_type"] != "error", content
            said += content.get("text", "")
            if content.get("execution_state") == "idle":
                return said


async def test_a_session_is_paused_over_rest_while_its_kernel_is_busy(jupyter: Jupyter, model: Path) -> None:
    window = await jupyter.listen()
    kernel = await Kernel.start(jupyter, "work/paris.ipynb")
    name = str(Path(jupyter.app.root_dir) / "work" / "paris.ipynb")
    executed = kernel.client.execute(UNTIL_PAUSED.format(model=str(model), device=computed_on(), prompt=PROMPT))
    await window.until_seen(lambda engines: any(_is_busy(e["sessions"].get(name)) for e in engines.values()))
    (engine,) = window.engines
    assert window.session(name)["label"] == "paris"
    assert window.session(name)["notebook"] == "work/paris.ipynb"
    assert window.session(name)["described"]["holder"] == f"kernel-{kernel.number}"
    paused = {"was_running": False}
    while not paused["was_running"]:  # between two runs of the cell there is nothing to pause
        status, paused = await jupyter.ask(engine, "Pause", session=name)
        assert status == 200
    assert (await kernel.printed(executed)).startswith("interrupt at ")
    await window.until_seen(lambda engines: engines[engine]["sessions"][name]["described"]["state"] == "paused")
    await window.until_seen(lambda engines: engines[engine]["sessions"][name]["kernel"]["state"] == "idle")
    restarted: asyncio.Queue[str] = asyncio.Queue()
    jupyter.extension.monitor.kernel_restarted = restarted.put_nowait
    await jupyter.fetch(f"api/kernels/{kernel.number}/restart", "")
    assert await restarted.get() == kernel.number
    status, resumed = await jupyter.ask(engine, "Step", session=name)
    assert status == 202
    outcome = await window.until(lambda m: m["live"] == "outcome" and m["move"] == resumed["move"])
    assert (outcome["reply"]["reply"], outcome["reply"]["reason"]) == ("Paused", "step")
    kernel.client.stop_channels()
    await window.close()


def _is_busy(session: Json | None) -> bool:
    return session is not None and session["kernel"] is not None and session["kernel"]["state"] == "busy"


async def test_a_browser_sees_what_the_verbs_in_python_see(jupyter: Jupyter, model: Path) -> None:
    engine = await asyncio.to_thread(dj.load, model, dtype="float32", device=computed_on(), threads=1)
    number = engine.entry.id
    session = await asyncio.to_thread(engine.session, "paris")
    jupyter.extension.monitor._look()
    _, breakpoint_set = await jupyter.ask(number, "SetBreakpoint", session="paris", site="4", when="step == 0")
    assert breakpoint_set["breakpoint"]["site"] == "resid_post.4"
    stop = await asyncio.to_thread(session.run, PROMPT, max_new_tokens=4)
    _, read = await jupyter.ask(number, "ReadStop", session="paris")
    assert (read["site"], read["norms"]) == (stop.site, list(stop.norms))
    _, inspected = await jupyter.ask(number, "Inspect", session="paris")
    assert _bytes(inspected["snapshot"]["value"]) == (await asyncio.to_thread(lambda: stop.hidden)).tobytes()
    window = await jupyter.listen()
    for request in ("Resume", "Back", "Resume"):
        status, accepted = await jupyter.ask(number, request, session="paris")
        assert (status, accepted["reply"]) == (202, "Accepted")
        last = await window.until(lambda m, move=accepted["move"]: m["live"] == "outcome" and m["move"] == move)
    _, logits = await jupyter.ask(number, "ReadLogits", session="paris")
    assert _bytes(logits["logits"]) == (await asyncio.to_thread(session.logits)).tobytes()
    session.clear()
    plain = await asyncio.to_thread(session.run, PROMPT, max_new_tokens=4)
    assert tuple(last["reply"]["tokens"]) == plain.tokens
    await window.close()


def _bytes(array: Json) -> bytes:
    return base64.b64decode(array["base64"])
