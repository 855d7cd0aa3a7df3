"""A real Jupyter server in this process and event loop, with the extension in it, and the requests of a browser."""

from __future__ import annotations

import json
import secrets
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jupyter_server.serverapp import ServerApp
from tornado.httpclient import AsyncHTTPClient, HTTPRequest, HTTPResponse
from tornado.websocket import WebSocketClientConnection, websocket_connect

from djinn_jupyter.server.extension import DjinnServer

Json = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Jupyter:
    """`url` ends with the base URL."""

    app: ServerApp
    url: str
    token: str

    @property
    def extension(self) -> DjinnServer:
        return self.app.extension_manager.extension_points["djinn_jupyter"].app

    async def fetch(self, path: str, body: object = None, *, token: str | None = "", **options: Any) -> HTTPResponse:
        """Send a request, a POST where there is a body; without a token where `token` is None."""
        headers = options.pop("headers", {})
        if token is not None:
            headers["Authorization"] = f"token {token or self.token}"
        if body is not None:
            options.setdefault("method", "POST")
            options["body"] = body if isinstance(body, (str, bytes)) else json.dumps(body)
        request = HTTPRequest(self.url + path, headers=headers, follow_redirects=False, request_timeout=60, **options)
        return await AsyncHTTPClient().fetch(request, raise_error=False)

    async def engines(self) -> list[Json]:
        return json.loads((await self.fetch("djinn/api/engines")).body)["engines"]

    async def ask(self, engine: str, request: str, **fields: object) -> tuple[int, Json]:
        answer = await self.fetch(f"djinn/api/engines/{engine}/ask", {"request": request, **fields})
        return answer.code, json.loads(answer.body)

    async def listen(self, *, token: str | None = "", headers: dict[str, str] | None = None) -> Window:
        headers = dict(headers or {})
        if token is not None:
            headers["Authorization"] = f"token {token or self.token}"
        url = self.url.replace("http://", "ws://") + "djinn/api/live"
        return Window(await websocket_connect(HTTPRequest(url, headers=headers)))


class Window:
    """A browser window that listens. Keeps the picture as the contract says it is kept, and records the messages."""

    def __init__(self, socket: WebSocketClientConnection) -> None:
        self.socket = socket
        self.engines: dict[str, Json] = {}
        self.sequence = -1
        self.messages: list[Json] = []

    async def hear(self) -> Json:
        """Apply the next message to the picture, and return it."""
        text = await self.socket.read_message()
        assert text is not None, (self.socket.close_code, self.socket.close_reason)
        message: Json = json.loads(text)
        if message["live"] != "snapshot":
            assert message["sequence"] == self.sequence + 1
        self.sequence = message["sequence"]
        self.messages.append(message)
        self._apply(message)
        return message

    async def until(self, condition: Callable[[Json], object]) -> Json:
        """Hear until a message meets the condition."""
        while True:
            message = await self.hear()
            if condition(message):
                return message

    async def until_seen(self, condition: Callable[[dict[str, Json]], object]) -> None:
        """Hear until the picture meets the condition."""
        while not condition(self.engines):
            await self.hear()

    async def say(self, **fields: object) -> None:
        await self.socket.write_message(json.dumps(fields))

    def session(self, name: str) -> Json:
        """The session of that name, whichever engine has it."""
        return next(engine["sessions"][name] for engine in self.engines.values() if name in engine["sessions"])

    async def close(self) -> None:
        """Close, and read the remaining messages: else the closing frame is never reached."""
        self.socket.close()
        while await self.socket.read_message() is not None:
            pass

    def _apply(self, message: Json) -> None:
        match message["live"]:
            case "snapshot":
                self.engines = message["engines"]
            case "delta":
                self.engines |= message["appeared"]
                for engine, changed in message["changed"].items():
                    self._change(self.engines[engine], changed)
                for engine in message["gone"]:
                    del self.engines[engine]

    def _change(self, engine: Json, changed: Json) -> None:
        engine |= {key: changed[key] for key in ("found", "statistics") if key in changed}
        for name, session in changed.get("sessions", {}).items():
            if session is None:
                del engine["sessions"][name]
            else:
                engine["sessions"][name] = session


@asynccontextmanager
async def jupyter_server(
    root: Path, *, base_url: str = "/", ask_seconds: float = 30.0, **configured: Any
) -> AsyncIterator[Jupyter]:
    """Serve a folder. `configured` are traits of the server. Engines are found where JUPYTER_RUNTIME_DIR points to."""
    token = secrets.token_hex(8)
    app = ServerApp(
        port=0,
        base_url=base_url,
        root_dir=str(root),
        open_browser=False,
        allow_root=True,
        terminals_enabled=False,
        log_level="WARN",
        **configured,
    )
    app.config.IdentityProvider.token = token
    app.config.DjinnServer.ask_seconds = ask_seconds
    app.config.ServerApp.jpserver_extensions = {"djinn_jupyter": True}
    app.init_signal = lambda: None
    app.initialize(argv=[])
    try:
        app.start_app()
        await app._post_start()
        yield Jupyter(app=app, url=f"http://127.0.0.1:{app.port}{app.base_url}", token=token)
    finally:
        app.http_server.stop()
        await app.http_server.close_all_connections()
        await app._cleanup()
