"""A page of another origin, in a real browser: it runs nothing by the debug adapter, reads no metrics, and neither
writes to nor listens at the sidebar's gateway, though the browser has the cookie of the Jupyter server."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from playwright.sync_api import Page
from prometheus_client import CollectorRegistry

from djinn_jupyter.editors.dap import debuggee
from djinn_jupyter.editors.dap.protocol import encode
from djinn_jupyter.engine.process.metrics import start_page
from djinn_jupyter.errors import UsageError
from tests.browser.lab_server import LabServer
from tests.dap.conftest import served

LAUNCH = {
    "seq": 1,
    "type": "request",
    "command": "launch",
    "arguments": {"model": "demo", "prompt": "x", "trust_remote_code": True},
}
POST = """async ([url, body, mode, credentials]) => {
    const how = { method: body === null ? "GET" : "POST", body, mode, credentials };
    if (body !== null) how.headers = { "Content-Type": "text/plain" };
    try { const answer = await fetch(url, how); return [answer.type, answer.status, await answer.text()]; }
    catch (error) { return ["refused", 0, ""]; }
}"""
LISTEN = """url => new Promise(done => {
    const socket = new WebSocket(url);
    socket.onmessage = message => done(message.data);
    socket.onclose = () => done("closed");
})"""


class Elsewhere(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"<title>elsewhere</title>")

    def log_message(self, *_: Any) -> None:
        """Log nothing."""


@pytest.fixture(scope="module")
def elsewhere() -> Iterator[str]:
    """A web server of another origin."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Elsewhere)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://localhost:{server.server_port}/"
    server.shutdown()
    server.server_close()


def test_a_page_runs_nothing_by_the_adapter(page: Page, elsewhere: str, monkeypatch: pytest.MonkeyPatch) -> None:
    launched: list[object] = []

    def launch(plan: object, progress: object) -> None:
        launched.append(plan)
        raise UsageError("It would have run.")

    monkeypatch.setattr(debuggee, "launched", launch)
    port, _ = served()
    page.goto(elsewhere)
    for body in (json.dumps(LAUNCH), encode(LAUNCH).decode(), "\r\n\r\n" + encode(LAUNCH).decode()):
        for mode in ("no-cors", "cors"):
            answer = page.evaluate(POST, [f"http://127.0.0.1:{port}/", body, mode, "omit"])
            assert answer == ["refused", 0, ""]
    assert page.evaluate(LISTEN, f"ws://127.0.0.1:{port}/") == "closed"
    assert launched == []


def test_a_page_reads_no_metrics(page: Page, elsewhere: str) -> None:
    server, thread = start_page(0, "127.0.0.1", CollectorRegistry())
    page.goto(elsewhere)
    address = f"http://127.0.0.1:{server.server_port}/metrics"
    assert page.evaluate(POST, [address, None, "cors", "omit"]) == ["refused", 0, ""]
    assert page.evaluate(POST, [address, None, "no-cors", "omit"]) == ["opaque", 0, ""]
    server.shutdown()
    server.server_close()
    thread.join()


def test_a_page_neither_writes_to_nor_listens_at_the_gateway(page: Page, elsewhere: str, lab: LabServer) -> None:
    """The other page is on the same host, so that the browser sends the cookie along."""
    gateway = f"{lab.url}/djinn/api/"
    page.goto(f"{lab.url}/lab?token={lab.token}")
    assert page.evaluate(POST, [f"{gateway}engines", None, "same-origin", "include"])[1] == 200  # the cookie is there
    page.goto(elsewhere.replace("localhost", "127.0.0.1"))
    ping = json.dumps({"request": "Ping"})
    for path, body in (("engines", None), ("engines/fake-0-1/ask", ping)):
        assert page.evaluate(POST, [gateway + path, body, "cors", "include"]) == ["refused", 0, ""]
        assert page.evaluate(POST, [gateway + path, body, "no-cors", "include"]) == ["opaque", 0, ""]
    assert page.evaluate(LISTEN, gateway.replace("http", "ws") + "live") == "closed"
