"""Errors raised by the server itself. A browser receives each with the code of an error in `errors.py`.

UsageError
└── NotForBrowsers      a request that belongs to a kernel's client
EngineUnavailable
├── NoSuchEngine        no engine of that id is in the registry
└── TookTooLong         no answer within the time limit
"""

from __future__ import annotations

import asyncio
from http import HTTPStatus
from typing import Any, Final

from jupyter_core.utils import ensure_async
from jupyter_server.auth.decorator import authorized, ws_authenticated
from jupyter_server.base.handlers import APIHandler, JupyterHandler
from jupyter_server.base.websocket import WebSocketMixin
from tornado import web
from tornado.websocket import WebSocketClosedError, WebSocketHandler

from djinn_jupyter import errors
from djinn_jupyter._version import __version__
from djinn_jupyter.errors import DjinnError, EngineUnavailable, UsageError
from djinn_jupyter.link.transport import Connection
from djinn_jupyter.server import messages
from djinn_jupyter.server.link import EngineLink
from djinn_jupyter.server.live import LivePicture, Reader
from djinn_jupyter.server.messages import Accepted, Engines, Focus
from djinn_jupyter.server.monitor import Monitor
from djinn_jupyter.wire.replies import Failed, Opened, Reply
from djinn_jupyter.wire.requests import Detach, Request, SessionRequest


class NotForBrowsers(UsageError):
    code = UsageError.__name__


class NoSuchEngine(EngineUnavailable):
    code = EngineUnavailable.__name__


class TookTooLong(EngineUnavailable):
    code = EngineUnavailable.__name__


class Proxy:
    """Forwards requests. `seconds` is the time limit of a request, and of a move until the engine has accepted it."""

    def __init__(self, picture: LivePicture, seconds: float) -> None:
        self._picture, self._seconds = picture, seconds
        self._moves = 0

    async def ask(self, link: EngineLink, request: Request) -> Reply | Accepted:
        """Return the engine's reply, or Accepted for a move. Raises NotForBrowsers, TookTooLong, EngineUnavailable or
        the error of a Failed reply."""
        browser = type(request).terms.browser
        if browser is None:
            raise NotForBrowsers(f"{type(request).__name__} is not for a browser to ask.")
        try:
            async with asyncio.timeout(self._seconds):
                connection = await link.connection()
                if browser == "moves" and isinstance(request, SessionRequest):
                    return await self._move(link, connection, request)
                reply: Reply = await connection.ask(request)
        except TimeoutError:
            raise TookTooLong(
                f"The engine has not answered {type(request).__name__} within {self._seconds:g} s. It may still do it."
            ) from None
        if browser == "opens" and isinstance(reply, Opened):
            connection.post(Detach(session=reply.session.name), lambda outcome: None)  # any notebook may attach
        return reply

    async def _move(self, link: EngineLink, connection: Connection, request: SessionRequest[Any]) -> Accepted:
        """Return when the engine has accepted the move: at the session's next SessionRunning event, or at its reply."""
        started = link.next_start(request.session)
        asked = asyncio.ensure_future(connection.ask(request))
        try:
            await asyncio.wait((started, asked), return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            asked.add_done_callback(_unheard)
            raise
        finally:
            started.cancel()
        if asked.done():
            asked.result()  # raises the error of a refused move
        self._moves += 1
        number = self._moves
        asked.add_done_callback(lambda done: self._end(link, request, number, done))
        return Accepted(move=number)

    def _end(self, link: EngineLink, request: SessionRequest[Any], number: int, done: asyncio.Future[Reply]) -> None:
        try:
            reply: Reply = done.result()
        except DjinnError as error:
            reply = Failed.of(error)
        self._picture.outcome(link.id, request.session, type(request).__name__, number, reply)


def _unheard(asked: asyncio.Future[Reply]) -> None:
    """Retrieve the error of an abandoned request, so that asyncio does not log it."""
    if not asked.cancelled():
        asked.exception()


# The HTTP status of an error, chosen by the nearest class of its inheritance chain.

STATUSES: Final[dict[type[errors.DjinnError], HTTPStatus]] = {
    errors.DjinnError: HTTPStatus.INTERNAL_SERVER_ERROR,
    errors.UsageError: HTTPStatus.BAD_REQUEST,
    NotForBrowsers: HTTPStatus.METHOD_NOT_ALLOWED,
    errors.UnknownSession: HTTPStatus.NOT_FOUND,
    errors.IllegalMove: HTTPStatus.CONFLICT,
    errors.SessionHeld: HTTPStatus.CONFLICT,
    errors.SessionsWouldSuffer: HTTPStatus.CONFLICT,
    errors.CheckpointRefused: HTTPStatus.CONFLICT,
    errors.StorageFailed: HTTPStatus.INSUFFICIENT_STORAGE,
    errors.OverQuota: HTTPStatus.INSUFFICIENT_STORAGE,
    errors.MemoryShortage: HTTPStatus.INSUFFICIENT_STORAGE,
    errors.EngineUnavailable: HTTPStatus.SERVICE_UNAVAILABLE,
    NoSuchEngine: HTTPStatus.NOT_FOUND,
    TookTooLong: HTTPStatus.GATEWAY_TIMEOUT,
    errors.VersionMismatch: HTTPStatus.CONFLICT,
    errors.MalformedMessage: HTTPStatus.BAD_REQUEST,
    errors.MessageTooLarge: HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
}


def status_of(error: errors.DjinnError) -> HTTPStatus:
    nearest = next(kind for kind in type(error).__mro__ if kind in STATUSES)
    return STATUSES[nearest]


# The HTTP and WebSocket endpoints: authenticated by the Jupyter server, authorized as the resource `djinn`.

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
        self.finish(messages.write(Engines(version=__version__, protocol=messages.digest(), engines=found)))


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
            body = messages.write(Failed.of(error))
        self.set_status(status)
        self.finish(body)

    async def _ask(self, engine: str) -> tuple[HTTPStatus, bytes]:
        await self._monitor.ready()
        link = self._monitor.find(engine)
        if link is None:
            raise NoSuchEngine(f"No engine {engine!r} runs here; load its model again.")
        notebook = self.get_query_argument("notebook", None)
        request = self._monitor.asked_by(notebook, messages.read_request(self.request.body))
        answer = await self._proxy.ask(link, request)
        return HTTPStatus.ACCEPTED if isinstance(answer, Accepted) else HTTPStatus.OK, messages.write(answer)


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
        return messages.MAX_SAID_BYTES

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
            said = messages.read_said(message)
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
