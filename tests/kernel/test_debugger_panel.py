"""JupyterLab's debugger on a stopped pass: a real kernel, asked on its control channel as JupyterLab asks."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from djinn_jupyter.editors.panel import FIRST_THREAD
from tests.kernel.conftest import SECONDS, Kernel

pytestmark = pytest.mark.alone


class Panel:
    """JupyterLab's debugger panel as one kernel hears it. Numbers of requests begin anew, as JupyterLab's do."""

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self._number = 0

    def ask(self, command: str, **arguments: Any) -> dict[str, Any]:
        client = self.kernel.client
        content = {"type": "request", "seq": self._number, "command": command, "arguments": arguments}
        self._number += 1
        sent = client.session.msg("debug_request", content)
        client.control_channel.send(sent)
        while True:
            reply = self.kernel.next_of(client.get_control_msg, f"the reply to {command}")
            if reply["parent_header"].get("msg_id") == sent["header"]["msg_id"]:
                assert reply["content"].get("request_seq", content["seq"]) == content["seq"]
                return dict(reply["content"])

    def body(self, command: str, **arguments: Any) -> dict[str, Any]:
        reply = self.ask(command, **arguments)
        assert reply["success"], reply
        return dict(reply["body"])

    def event(self, name: str) -> dict[str, Any]:
        """The body of the next debug event of that name on iopub. Fails at once where a cell fails: none comes then."""
        while True:
            message = self.kernel.take(lambda m: m["msg_type"] in ("debug_event", "error"))
            assert message["msg_type"] != "error", "\n".join(message["content"]["traceback"])
            if message["content"]["event"] == name:
                return dict(message["content"].get("body", {}))

    def stopped_by(self, cell: str) -> int:
        """Run a cell that ends in a stop; return the stopped thread, once the cell has ended and the panel shows it."""
        begun = self.kernel.begin(cell)
        thread = int(self.event("stopped")["threadId"])
        self.kernel.outputs(begun)
        return thread

    def moved(self, command: str, thread: int) -> str:
        """Press a button; the top of the stack where the pass stands then."""
        assert self.ask(command, threadId=thread)["success"]
        assert self.event("continued")["threadId"] == thread
        assert self.event("stopped")["threadId"] == thread
        return str(self.stack(thread)[0]["name"])

    def await_stopped(self, *threads: int) -> None:
        """Wait until these threads are stopped, and no others: a move's end is heard a little later."""
        deadline = time.monotonic() + SECONDS
        while (found := self.body("debugInfo")["stoppedThreads"]) != list(threads):
            assert time.monotonic() < deadline, f"stopped are {found}"

    def stack(self, thread: int) -> list[dict[str, Any]]:
        return list(self.body("stackTrace", threadId=thread)["stackFrames"])

    def variables(self, frame: int, scope: str) -> dict[str, dict[str, Any]]:
        scopes = {s["name"]: s["variablesReference"] for s in self.body("scopes", frameId=frame)["scopes"]}
        return {v["name"]: v for v in self.body("variables", variablesReference=scopes[scope])["variables"]}


@pytest.fixture
def panel(kernels: Callable[[str], Kernel], model: Path) -> Panel:
    kernel = kernels("panel.ipynb")
    kernel.do("%load_ext djinn_jupyter\nids = [3, 4, 5, 6, 7]")
    kernel.do(f"%djinn_load {model} --fresh")
    assert "is on" in "".join(kernel.do("%djinn_debugger on"))
    return Panel(kernel)


def start_python_debugging(panel: Panel) -> None:
    """Send the requests that the bug icon of a notebook sends."""
    assert panel.ask("initialize", clientID="jupyterlab", adapterID="python3", linesStartAt1=True)["success"]
    assert panel.ask("attach")["success"]
    assert panel.body("debugInfo")["isStarted"]


def test_a_stop_is_shown_and_the_buttons_move_it(panel: Panel) -> None:
    kernel = panel.kernel
    assert panel.body("debugInfo")["stoppedThreads"] == []
    start_python_debugging(panel)
    kernel.do("%djinn_break 20")
    thread = panel.stopped_by("%djinn_run --ids ids --max-tokens 3")
    assert thread >= FIRST_THREAD
    assert panel.body("debugInfo")["stoppedThreads"] == [thread]
    stack = panel.stack(thread)
    assert [frame["name"] for frame in stack][:3] == [
        "resid_post.20, step 0 of panel",
        "model.layers.20 (LlamaDecoderLayer)",
        "model (LlamaModel)",
    ]
    shown = panel.variables(stack[0]["id"], "Activation")
    kernel.do("%djinn_inspect -o seen")
    kernel.do("import numpy as np")
    assert shown["shape"]["value"] == "[5, 32]"
    mean = float("".join(kernel.do("float(seen.value.astype(np.float64).mean())")))
    assert float(shown["mean"]["value"]) == pytest.approx(mean, rel=1e-5)
    source = panel.body("source", source=stack[0]["source"], sourceReference=stack[0]["source"]["sourceReference"])
    assert source["content"].splitlines()[stack[0]["line"] - 1].split()[0] == "resid_post.20"
    rich = panel.body("richInspectVariables", variableName="value", frameId=stack[0]["id"])
    assert "resid_post.20" in rich["data"]["text/plain"]
    assert "<svg" in rich["data"]["text/html"] or "<img" in rich["data"]["text/html"]
    for command, place in (("next", "resid_post.21, step 0 of panel"), ("stepIn", "attn_in.22, step 0 of panel")):
        assert panel.moved(command, thread) == place
    kernel.do("%djinn_clear")
    assert panel.moved("stepOut", thread) == "attn_in.22, step 1 of panel"
    assert panel.ask("continue", threadId=1)["success"]  # as JupyterLab asks, whatever it shows
    assert panel.event("continued")["threadId"] == thread
    panel.await_stopped()
    assert "idle" in "".join(kernel.do("%djinn_sessions"))


def test_a_magic_moves_what_the_panel_shows_and_python_sees_the_panels_moves(panel: Panel) -> None:
    kernel = panel.kernel
    kernel.do("%djinn_break 4")
    thread = panel.stopped_by("%djinn_run --ids ids -o first")
    old = panel.stack(thread)[0]["id"]
    reference = panel.variables(old, "Activation")["value"]["variablesReference"]
    edited = panel.body("setVariable", variablesReference=reference, name="[4]", value="* 0.5")
    assert "mean" in edited["value"]
    assert "scale 0.5" in "".join(kernel.do("first.session.stop.edits"))
    panel.body("copyToGlobals", srcVariableName="value", dstVariableName="copied", srcFrameId=old)
    assert "True" in "".join(kernel.do("import numpy as np\n(copied == first.session.stop.hidden).all()"))
    cell = kernel.begin("%djinn_step 2")
    assert panel.event("continued")["threadId"] == thread
    panel.event("stopped")
    kernel.outputs(cell)
    assert panel.stack(thread)[0]["name"] == "resid_post.6, step 0 of panel"
    assert panel.ask("variables", variablesReference=reference)["success"] is False
    assert panel.ask("next", threadId=thread)["success"]
    panel.event("stopped")
    assert "has moved on" in "".join(kernel.do("first.hidden"))
    assert "resid_post.7" in "".join(kernel.do("first.session.stop"))
    kernel.do("%djinn_break 4")
    thread = panel.stopped_by("%djinn_run --ids ids")
    before = panel.variables(panel.stack(thread)[0]["id"], "Activation")["norm"]["value"]
    assert panel.stopped_by("%djinn_edit scale 0.5") == thread
    after = panel.variables(panel.stack(thread)[0]["id"], "Activation")["norm"]["value"]
    assert float(after) == pytest.approx(float(before) / 2, rel=1e-4)


def test_pythons_own_debugging_goes_on_as_before(panel: Panel) -> None:
    """A pass is stopped all the while: a breakpoint in a cell, its stack, its variables, and on."""
    kernel = panel.kernel
    start_python_debugging(panel)
    kernel.do("%djinn_break 4")
    ours = panel.stopped_by("%djinn_run --ids ids")
    code = "total = 0\nfor number in range(3):\n    total += number\nprint('sum', total)"
    path = panel.body("dumpCell", code=code)["sourcePath"]
    point = panel.body("setBreakpoints", source={"path": path}, breakpoints=[{"line": 4}], sourceModified=False)
    assert point["breakpoints"][0]["verified"]
    assert panel.ask("configurationDone")["success"]
    cell = kernel.begin(code)
    pythons = panel.event("stopped")["threadId"]
    assert pythons < FIRST_THREAD
    assert set(panel.body("debugInfo")["stoppedThreads"]) >= {pythons, ours}
    frame = panel.stack(pythons)[0]
    assert frame["line"] == 4
    names = panel.variables(frame["id"], panel.body("scopes", frameId=frame["id"])["scopes"][0]["name"])
    assert names["total"]["value"] == "3"
    assert panel.stack(ours)[0]["name"] == "resid_post.4, step 0 of panel"
    assert panel.ask("continue", threadId=pythons)["success"]
    assert "sum 3\n" in kernel.outputs(cell)
    panel.await_stopped(ours)
    assert panel.ask("disconnect", restart=False, terminateDebuggee=False)["success"]
    assert panel.stack(ours)[0]["name"] == "resid_post.4, step 0 of panel"


def test_off_is_as_if_it_had_never_been_on(panel: Panel) -> None:
    kernel = panel.kernel
    kernel.do("%djinn_break 4")
    thread = panel.stopped_by("%djinn_run --ids ids")
    cell = kernel.begin("%djinn_debugger off")
    assert panel.event("continued")["threadId"] == thread
    assert "is off" in "".join(kernel.outputs(cell))
    assert panel.body("debugInfo")["stoppedThreads"] == []
    assert "['plain']" in "".join(
        kernel.do("['plain' if 'do_debug_request' not in vars(get_ipython().kernel) else 'covered']")
    )
    kernel.do("import djinn_jupyter.editors.panel as native\nnative.KNOWN = ('6.0.',)")
    refused = "".join(kernel.do("%djinn_debugger on"))
    assert "known to work with ipykernel 6.0.x" in refused
    assert "Traceback" not in refused


def test_the_pause_button_pauses_the_pass_while_the_kernel_is_busy(panel: Panel) -> None:
    kernel = panel.kernel
    cell = kernel.begin("%djinn_run --ids ids --max-tokens 400 --ignore-eos")
    panel.event("continued")
    assert panel.ask("pause", threadId=1)["success"]
    thread = panel.event("stopped")["threadId"]
    assert "paused at" in "".join(kernel.outputs(cell))
    assert panel.stack(thread)
    assert np.isfinite(float(panel.variables(panel.stack(thread)[0]["id"], "Activation")["norm"]["value"]))


def test_an_engine_that_dies_leaves_an_empty_panel(panel: Panel) -> None:
    kernel = panel.kernel
    kernel.do("%djinn_break 4")
    thread = panel.stopped_by("%djinn_run --ids ids -o stop")
    kernel.begin("import os, signal\nos.kill(stop.session._channel.entry.pid, signal.SIGKILL)")
    assert panel.event("continued")["threadId"] == thread
    reply = panel.ask("next", threadId=thread)
    assert reply["success"] is False
    assert "has ended" in reply["message"]


def test_an_engine_starts_while_pythons_debugger_is_on(kernels: Callable[[str], Kernel], model: Path) -> None:
    """debugpy rewrites the command lines of subprocesses; a program so rewritten waits for an editor, for ever."""
    kernel = kernels("bug.ipynb")
    panel = Panel(kernel)
    start_python_debugging(panel)
    assert panel.ask("configurationDone")["success"]
    kernel.do("%load_ext djinn_jupyter")
    loaded = "".join(kernel.do(f"%djinn_load {model} --attn eager --idle-swap-seconds 77"))  # no engine has that yet
    assert "24 layers" in loaded
    assert "resid_post.3" in "".join(kernel.do("%djinn_break 3\n%djinn_run --ids [3,4,5]"))
    assert panel.body("debugInfo")["isStarted"]
    kernel.do("%djinn_stop --force")


def test_the_session_in_use_is_shown_named_and_moved_and_no_fork_of_it(panel: Panel) -> None:
    kernel = panel.kernel
    kernel.do("%djinn_break 4")
    thread = panel.stopped_by("%djinn_run --ids ids")
    kernel.do("%djinn_fork parked")
    assert panel.body("debugInfo")["stoppedThreads"] == [thread]
    assert panel.moved("next", thread) == "resid_post.5, step 0 of panel"
    parked = panel.stopped_by("%djinn_use parked")
    assert parked != thread
    assert panel.stack(parked)[0]["name"] == "resid_post.4, step 0 of parked"
    assert panel.stack(thread)[0]["name"] == "resid_post.5, step 0 of panel"
    assert panel.moved("continue", parked) == "resid_post.4, step 1 of parked"  # a fork has its parent's breakpoints
    assert panel.body("debugInfo")["stoppedThreads"] == [parked]
    kernel.do("%djinn_clear")
    assert panel.ask("continue", threadId=1)["success"]
    assert panel.event("continued")["threadId"] == parked
    panel.await_stopped()
    assert panel.stack(thread)[0]["name"] == "resid_post.5, step 0 of panel"


def test_breakpoints_in_the_models_source_are_still_told_when_the_panel_asks_anew(panel: Panel) -> None:
    kernel = panel.kernel
    kernel.do("%djinn_break 4")
    thread = panel.stopped_by("%djinn_run --ids ids")
    source = panel.stack(thread)[0]["source"]
    line = panel.stack(thread)[0]["line"] + 1
    panel.body("setBreakpoints", source={"path": source["path"]}, breakpoints=[{"line": line}], sourceModified=False)
    [told] = panel.body("debugInfo")["breakpoints"]
    assert (told["source"], [point["line"] for point in told["breakpoints"]]) == (source["path"], [line])
    before = kernel.do("%djinn_breaks")
    kernel.do("%djinn_fork other\n%djinn_use other")
    assert panel.body("debugInfo")["breakpoints"] == []
    lines = [{"line": line + 1}]
    aimed = panel.body("setBreakpoints", source={"path": source["path"]}, breakpoints=lines, sourceModified=False)
    assert [point["message"] for point in aimed["breakpoints"]] == ["Stops session other."]
    assert kernel.do("%djinn_breaks") != before
    assert "is in use" in "".join(kernel.do(f"%djinn_use {kernel.notebook}"))
    assert kernel.do("%djinn_breaks") == before
