"""docs/jupyterhub.md with a real JupyterHub of two users: `make hub-test` installs it. Its configuration is that of the
page, but for users who are users of the system, whom a test cannot make."""

from __future__ import annotations

import asyncio
import json
import os
import re
import secrets
import signal
import subprocess
import sys
import uuid
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from tornado.httpclient import AsyncHTTPClient, HTTPClientError, HTTPRequest, HTTPResponse
from tornado.websocket import websocket_connect

from djinn_evaluation.commands.experiment import UNDECIDED
from djinn_jupyter.wire.keys import KeyFolder
from tests.ports import free_port

ROOT = Path(__file__).parents[2]
INSTALLED = os.environ.get("DJINN_JUPYTERHUB")  # the environment that `make hub-test` made
PAGE = (ROOT / "docs" / "jupyterhub.md").read_text()
SECONDS = 180.0
pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.skipif(INSTALLED is None, reason="no JupyterHub here: make hub-test"),
]

BEGIN = """
import djinn_jupyter as dj
engine = dj.load("demo", at="hub")
session = engine.session("main")
session.run("The capital of France is", max_new_tokens=3)
print(session.describe().owner, end=" ")
print(sorted((one.name, one.owner) for one in engine.sessions()))
"""
MEASURED = """
import json
from pathlib import Path
import djinn_jupyter.cli.main as cli
words = ["--set", "repeat=1", "--set", "neighbour_tokens=24", "--set", "stop_interval_seconds=0.05"]
there = ["--server", "hub", "--output-dir", "found"]
status = cli.main(["experiment", "checkpoint-cost", "--profile", "small", *there, *words])
found = json.loads(Path("found/checkpoint_cost_results.json").read_text())
print("status", status, found["neighbour_tokens_per_s"]["alone"] > 0, found["reached_over_a_line"]["round_trip_ms"] > 0)
"""
COLLECTED = """
acts = engine.collect([[5, 6, 7], [8, 9]], "resid_post.4", to="acts")
print(len(acts), acts.complete, acts["resid_post.4"].shape, acts.folder)
"""
AGAIN = "print(session.describe().name)"


class RealHub:
    def __init__(self, url: str, token: str) -> None:
        self.url, self.token = url, token

    async def api(self, path: str, method: str = "GET", **headers: str) -> HTTPResponse:
        sent = {"Authorization": f"token {self.token}", **headers}
        request = HTTPRequest(
            self.url + path,
            method,
            sent,
            request_timeout=SECONDS,
            follow_redirects=False,
            allow_nonstandard_methods=True,
        )
        return await AsyncHTTPClient().fetch(request, raise_error=False)

    async def start(self, user: str) -> None:
        """Start a user's server, and wait until it answers."""
        await self.api(f"/hub/api/users/{user}", "POST")
        await self.api(f"/hub/api/users/{user}/server", "POST")

        async def ready() -> bool:
            return (await self.api(f"/user/{user}/api/status")).code == 200

        await until(ready)

    async def kernel(self, user: str) -> Kernel:
        started = await self.api(f"/user/{user}/api/kernels", "POST")
        assert started.code == 201, started.body
        number = json.loads(started.body)["id"]
        url = f"{self.url.replace('http', 'ws')}/user/{user}/api/kernels/{number}/channels"
        return Kernel(await websocket_connect(HTTPRequest(url, headers={"Authorization": f"token {self.token}"})))


class Kernel:
    """A kernel of a user's server, over the server's web socket."""

    def __init__(self, socket: Any) -> None:
        self._socket = socket

    async def says(self, code: str) -> str:
        """Run code; return what it printed, waits apart, or the last line of its error."""
        number, said = uuid.uuid4().hex, []
        header = {"msg_id": number, "msg_type": "execute_request", "session": "s", "username": "", "version": "5.3"}
        content = {"code": code, "silent": False, "store_history": False, "user_expressions": {}, "allow_stdin": False}
        message = {"header": header, "parent_header": {}, "metadata": {}, "content": content, "channel": "shell"}
        await self._socket.write_message(json.dumps(message))
        async with asyncio.timeout(SECONDS):
            while True:
                heard = json.loads(await self._socket.read_message())
                if heard["parent_header"].get("msg_id") != number:
                    continue
                if heard["msg_type"] == "stream" and heard["content"]["name"] == "stdout":
                    said.append(heard["content"]["text"])
                elif heard["msg_type"] == "error":
                    said.append(f"{heard['content']['ename']}: {heard['content']['evalue']}")
                elif heard["msg_type"] == "status" and heard["content"]["execution_state"] == "idle":
                    return "".join(said)  # a reply comes by another way, before all that was printed perhaps


async def until(holds: Callable[[], Any]) -> None:
    async with asyncio.timeout(SECONDS):
        while True:
            try:
                if await holds():
                    return
            except (OSError, HTTPClientError):
                pass
            await asyncio.sleep(0.1)


@pytest.fixture
async def box(tmp_path: Path) -> AsyncIterator[dict[str, str]]:
    """The environment of the engine's user, whose engine runs."""
    folders = {f"JUPYTER_{kind}_DIR": str(tmp_path / "box" / kind.lower()) for kind in ("DATA", "RUNTIME", "CONFIG")}
    environment = {"HOME": str(tmp_path / "box"), "PYTHONPATH": str(ROOT), **folders}
    words = [sys.executable, "-m", "djinn_jupyter.cli.main", "serve", "demo", "--listen", "tcp://127.0.0.1:*"]
    words += ["--page-positions", "16"]  # as the small profile of experiments has it
    engine = subprocess.Popen(words, env={**os.environ, **environment}, stdout=subprocess.PIPE, text=True)
    try:
        while "listens on" not in (line := engine.stdout.readline()):
            assert line, "the engine has ended"
        yield environment
    finally:
        engine.send_signal(signal.SIGINT)
        engine.communicate(timeout=SECONDS)


@pytest.fixture
async def hub(tmp_path: Path, box: dict[str, str]) -> AsyncIterator[RealHub]:
    public, inner, proxy, service = (free_port() for _ in range(4))
    token = secrets.token_hex(16)
    (block,) = re.findall(r"```python\n# jupyterhub_config\.py\n(.*?)```", PAGE, re.DOTALL)
    (tmp_path / "jupyterhub_config.py").write_text(
        block.replace("10101", str(service))
        + f"""
djinn = c.JupyterHub.services[0]
djinn["command"] = [{sys.executable!r}, "-m", "djinn_jupyter.cli.main", *djinn["command"][1:], "--look", "1s"]
del djinn["user"]
djinn["environment"] = {box!r}
c.JupyterHub.services.append({{"name": "test", "api_token": {token!r}, "admin": True}})
c.JupyterHub.bind_url = "http://127.0.0.1:{public}"
c.JupyterHub.hub_port = {inner}
c.ConfigurableHTTPProxy.api_url = "http://127.0.0.1:{proxy}"
c.ConfigurableHTTPProxy.auth_token = {secrets.token_hex(16)!r}
c.ConfigurableHTTPProxy.command = [{f"{INSTALLED}/node_modules/.bin/configurable-http-proxy"!r}]
c.JupyterHub.authenticator_class = "dummy"
c.DummyAuthenticator.password = "password of the test"
c.Authenticator.allowed_users = {{"anna", "bert"}}
c.JupyterHub.spawner_class = "simple"
c.SimpleLocalProcessSpawner.home_dir_template = {str(tmp_path / "home")!r} + "/{{username}}"
c.Spawner.cmd = [{f"{INSTALLED}/bin/jupyterhub-singleuser"!r}]
c.Spawner.args = ["--allow-root"]
c.Spawner.environment["PYTHONPATH"] = {str(ROOT)!r}
"""
    )
    path = os.pathsep.join([f"{INSTALLED}/bin", os.environ["PATH"]])
    with (tmp_path / "hub.log").open("w") as log:
        process = subprocess.Popen(
            [f"{INSTALLED}/bin/jupyterhub", "-f", "jupyterhub_config.py"],
            cwd=tmp_path,
            env={**os.environ, "PATH": path},
            stdout=log,
            stderr=subprocess.STDOUT,
        )
        found = RealHub(f"http://127.0.0.1:{public}", token)

        async def up() -> bool:
            assert process.poll() is None, (tmp_path / "hub.log").read_text()
            return (await found.api("/services/djinn/")).code == 200

        try:
            await until(up)
            yield found
        finally:
            process.send_signal(signal.SIGINT)
            process.wait(SECONDS)


async def test_two_users_share_an_engine_until_one_logs_out_and_a_token_of_the_other_is_revoked(
    hub: RealHub, box: dict[str, str], tmp_path: Path
) -> None:
    keys = KeyFolder(Path(box["JUPYTER_DATA_DIR"]) / "djinn" / "keys")

    def persons() -> list[str]:
        return sorted(keys.allowed().values())

    kernels = {}
    for user in ("anna", "bert"):
        await hub.start(user)
        kernels[user] = await hub.kernel(user)
        said = await kernels[user].says(BEGIN)
        assert said.startswith(f"{user} "), said
        assert f"('main', '{user}')" in said
        here = tmp_path / "home" / user / "acts"
        assert await kernels[user].says(COLLECTED) == f"2 True (5, 128) {here}\n"
        assert [path.name for path in here.iterdir()] == ["shard-00000.safetensors"]
    assert persons() == ["anna", "bert"]
    assert "('main', 'bert')" not in await kernels["anna"].says("print(engine.sessions())")
    await _log_in_and_out(hub, "anna")

    async def only_bert() -> bool:
        return persons() == ["bert"]

    await until(only_bert)
    assert await kernels["bert"].says(AGAIN) == "main\n"
    tokens = json.loads((await hub.api("/hub/api/users/bert/tokens")).body)["api_tokens"]
    for one in tokens:
        assert (await hub.api(f"/hub/api/users/bert/tokens/{one['id']}", "DELETE")).code == 204

    async def none() -> bool:
        return persons() == []

    await until(none)
    assert (await kernels["bert"].says(AGAIN)).startswith("KeyRefused: The engine does not admit this key any more")
    again = await kernels["bert"].says('dj.load("demo", at="hub")')
    assert again.startswith("KeyRefused: The hub does not know this server's token any more"), again


async def test_an_experiment_measures_the_engine_of_the_hub(hub: RealHub) -> None:
    await hub.start("anna")
    kernel = await hub.kernel("anna")
    said = await kernel.says(MEASURED)
    assert said.endswith(f"status {UNDECIDED} True True\n"), said


async def _log_in_and_out(hub: RealHub, user: str) -> None:
    """Log a user in and out as a browser does."""
    page = await hub.api("/hub/login", Authorization="")
    cookies = {one.split("=", 1)[0]: one for one in _cookies(page)}
    xsrf = cookies["_xsrf"].split("=", 1)[1]
    form = f"_xsrf={xsrf}&username={user}&password=password+of+the+test"
    request = HTTPRequest(
        f"{hub.url}/hub/login?_xsrf={xsrf}",
        "POST",
        {"Cookie": "; ".join(cookies.values()), "Content-Type": "application/x-www-form-urlencoded"},
        form,
        follow_redirects=False,
    )
    entered = await AsyncHTTPClient().fetch(request, raise_error=False)
    assert entered.code == 302, entered.body
    cookies |= {one.split("=", 1)[0]: one for one in _cookies(entered)}
    left = await hub.api("/hub/logout", Authorization="", Cookie="; ".join(cookies.values()))
    assert left.code in (200, 302)


def _cookies(answer: HTTPResponse) -> list[str]:
    return [one.partition(";")[0] for one in answer.headers.get_list("Set-Cookie")]
