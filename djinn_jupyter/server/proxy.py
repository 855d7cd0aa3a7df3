"""Forward a browser's request to an engine: check that a browser may send it, answer it, limit its time."""

from __future__ import annotations

import asyncio
from typing import Any

from djinn_jupyter.client.connection.transport import Connection
from djinn_jupyter.errors import DjinnError
from djinn_jupyter.server.http_errors import NotForBrowsers, TookTooLong
from djinn_jupyter.server.link import EngineLink
from djinn_jupyter.server.live import LivePicture
from djinn_jupyter.server.messages import Accepted
from djinn_jupyter.wire.replies import Failed, Opened, Reply
from djinn_jupyter.wire.requests import Detach, Request, SessionRequest


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
