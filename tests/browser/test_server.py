"""A page of JupyterLab speaks to the server extension while the kernel of its notebook is busy with a synchronous cell.

The page uses the means of any extension: its own connection settings, the server's cookie and XSRF token, a WebSocket.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_notebook
from playwright.sync_api import Page

from tests.browser.lab_page import LabPage
from tests.browser.lab_server import LabServer

LOAD = """import djinn_jupyter as dj
from djinn_jupyter.link.naming import default_session_name
session = dj.load("demo").session(default_session_name())"""
RUN = """stop = None
while not isinstance(stop, dj.Paused):
    stop = session.run("The capital of France is", max_new_tokens=100, ignore_eos=True)
print(stop.reason)"""

# Listens, and keeps the picture of the sessions as it is told.
LISTEN = """() => new Promise(heard => {
    const { wsUrl, token } = window.jupyterapp.serviceManager.serverSettings;
    const socket = new WebSocket(`${wsUrl}djinn/api/live?token=${token}`);
    const sessions = window.djinnSessions = {};
    window.djinnOutcomes = [];
    const take = ([engine, told]) => Object.entries(told.sessions ?? {}).forEach(
        ([name, session]) => { sessions[name] = session && { engine, ...session } });
    socket.onmessage = event => {
        const message = JSON.parse(event.data);
        Object.entries(message.engines ?? {}).forEach(take);
        Object.entries(message.appeared ?? {}).forEach(take);
        Object.entries(message.changed ?? {}).forEach(take);
        if (message.live === 'outcome') window.djinnOutcomes.push(message);
        heard();
    };
})"""
# With the cookie and the XSRF token alone, as a page that knows no token has them.
ASK = """async ([engine, request]) => {
    const { baseUrl } = window.jupyterapp.serviceManager.serverSettings;
    const xsrf = document.cookie.match(/\\b_xsrf=([^;]*)/)[1];
    const answer = await fetch(`${baseUrl}djinn/api/engines/${engine}/ask`, {
        method: 'POST', body: JSON.stringify(request), headers: { 'X-XSRFToken': xsrf } });
    return { status: answer.status, ...await answer.json() };
}"""
OUTCOME = "move => window.djinnOutcomes.find(outcome => outcome.move === move)?.reply.reply"
SESSION = "Object.values(window.djinnSessions).find(session => session?.notebook === 'busy.ipynb')"


@pytest.fixture
def notebook(lab: LabServer) -> str:
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    cells = [new_code_cell(source) for source in (LOAD, RUN)]
    nbformat.write(new_notebook(cells=cells, metadata={"kernelspec": kernel}), lab.folder / "busy.ipynb")
    return "busy.ipynb"


def test_a_page_pauses_a_session_while_its_kernel_is_busy(lab: LabServer, notebook: str, page: Page) -> None:
    opened = LabPage.open(page, lab.address(notebook))
    page.set_default_timeout(240_000)
    opened.wait_for_kernel()
    page.evaluate(LISTEN)
    page.evaluate("() => { window.djinnRan = window.jupyterapp.commands.execute('notebook:run-all-cells') }")
    page.wait_for_function(f"() => {SESSION}?.described.state === 'running' && {SESSION}.kernel.state === 'busy'")
    session: dict[str, Any] = page.evaluate(f"() => {SESSION}")
    assert session["label"] == Path(notebook).stem
    asked = {"request": "Pause", "session": session["described"]["name"]}
    paused: dict[str, Any] = {"was_running": False}
    while not paused["was_running"]:  # between two runs of the cell there is nothing to pause
        paused = page.evaluate(ASK, [session["engine"], asked])
        assert paused["status"] == 200
    page.wait_for_function(f"() => {SESSION}.described.state === 'paused' && {SESSION}.kernel.state === 'idle'")
    page.evaluate("() => window.djinnRan")  # what the cell printed comes by another way than the kernel's state
    said = [output["text"] for output in opened.outputs() if output.get("name") == "stdout"]
    assert said == ["interrupt\n"]
    accepted = page.evaluate(ASK, [session["engine"], asked | {"request": "Resume"}])
    assert accepted["status"] == 202
    outcome = page.wait_for_function(OUTCOME, arg=accepted["move"])
    assert outcome.json_value() == "Finished"
