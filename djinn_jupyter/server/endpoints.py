"""The HTTP and WebSocket endpoints: authenticated by the Jupyter server, authorized as the resource `djinn`."""

from __future__ import annotations

import asyncio
from http import HTTPStatus
from typing import Any

from jupyter_core.utils import ensure_async
from jupyter_server.auth.decorator import authorized, ws_authenticated
from jupyter_server.base.handlers import APIHandler, JupyterHandler
from jupyter_server.base.websocket import WebSocketMixin
from tornado import web
from tornado.websocket import WebSocketClosedError, WebSocketHandler

from djinn_jupyter._version import __version__
from djinn_jupyter.errors import DjinnError
from djinn_jupyter.server import json_codec, protocol
from djinn_jupyter.server.http_errors import NoSuchEngine
from djinn_jupyter.server.live import LivePicture
from djinn_jupyter.server.messages import Accepted, Engines, Focus
from djinn_jupyter.server.monitor import Monitor
from djinn_jupyter.server.proxy import Proxy
from djinn_jupyter.server.reader import Reader
from djinn_jupyter.server.statuses import status_of
from djinn_jupyter.wire.replies import Failed

RESOURCE = "djinn"
NOT_OURS = 1007  # "invalid frame payload data", RFC 6455
REASON_BYTES = 123  # the room in a closing frame, RFC 6455 section 5.5


class EnginesEndpoint(APIHandler):
    auth_resource = RESOURCE

    def initialize(self, monitor: Monitor) -> None:
        self._monitor = monitor

    @web.authenticated
    @authorized
    async def get(self) -> None:
        await self._monitor.ready()
        found = tuple(link.found() for link in self._monitor.links)
        self.finish(json_codec.write(Engines(version=__version__, protocol=protocol.digest(), engines=found)))


class AskEndpoint(APIHandler):
    auth_resource = RESOURCE

    def initialize(self, monitor: Monitor, proxy: Proxy) -> None:
        self._monitor, self._proxy = monitor, proxy

    @web.authenticated
    @authorized
    async def post(self, engine: str) -> None:
        refused_as = self.get_query_argument("refused", None)
        try:
            status, body = await self._ask(engine)
        except DjinnError as error:
            status = HTTPStatus.OK if refused_as == "200" else status_of(error)
            body = json_codec.write(Failed.of(error))
        self.set_status(status)
        self.finish(body)

    async def _ask(self, engine: str) -> tuple[HTTPStatus, bytes]:
        await self._monitor.ready()
        link = self._monitor.find(engine)
        if link is None:
            raise NoSuchEngine(f"No engine {engine!r} runs here; load its model again.")
        notebook = self.get_query_argument("notebook", None)
        request = self._monitor.asked_by(notebook, json_codec.read_request(self.request.body))
        answer = await self._proxy.ask(link, request)
        return HTTPStatus.ACCEPTED if isinstance(answer, Accepted) else HTTPStatus.OK, json_codec.write(answer)


class LiveEndpoint(WebSocketMixin, WebSocketHandler, JupyterHandler):
    auth_resource = RESOURCE

    def initialize(self, monitor: Monitor, picture: LivePicture) -> None:
        self._monitor, self._picture = monitor, picture
        self._reader = Reader(send=self._send, snapshot=picture.snapshot)
        self._sending: asyncio.Task[None] | None = None

    def set_default_headers(self) -> None:
        """Set none: a WebSocket has none of a page's headers."""

    @property
    def max_message_size(self) -> int:
        return json_codec.MAX_SAID_BYTES

    def get_compression_options(self) -> Any:
        return self.settings.get("websocket_compression_options")

    @ws_authenticated
    async def get(self, *args: Any, **kwargs: Any) -> None:
        if not await ensure_async(self.authorizer.is_authorized(self, self.current_user, "read", RESOURCE)):
            raise web.HTTPError(403)
        await self._monitor.ready()
        await self._monitor.read()  # so that the snapshot is current
        await super().get(*args, **kwargs)

    def open(self, *args: str, **kwargs: str) -> None:
        super().open(*args, **kwargs)
        self._picture.readers.add(self._reader)
        self._sending = asyncio.ensure_future(self._reader.run())
        self._sending.add_done_callback(_seen)
        self._monitor.hurry()

    def on_message(self, message: str | bytes) -> None:
        try:
            said = json_codec.read_said(message)
        except DjinnError as error:
            self.close(NOT_OURS, closing_reason(str(error)))
            return
        if isinstance(said, Focus):
            self._reader.focus = said.notebook
            self._monitor.hurry()
        else:
            self._reader.resync()

    def on_close(self) -> None:
        self._picture.readers.discard(self._reader)
        if self._sending is not None:
            self._sending.cancel()
        self._monitor.hurry()

    async def _send(self, message: bytes) -> None:
        await self.write_message(message.decode())


def closing_reason(sentence: str) -> str:
    """Cut a sentence to the bytes that a closing frame holds; no character is cut in two."""
    return sentence.encode(errors="replace")[:REASON_BYTES].decode(errors="ignore")


def _seen(sending: asyncio.Task[None]) -> None:
    """Raise the error of a sending task; a window that closes while a message is being sent is not an error."""
    if not sending.cancelled():
        error = sending.exception()
        if error is not None and not isinstance(error, WebSocketClosedError):
            raise error
