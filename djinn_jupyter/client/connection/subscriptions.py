"""Hand an engine's events to the listeners of their session. Once the engine has confirmed, none is missed."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

import zmq

from djinn_jupyter.client.connection.zmq_stream import ZmqStream
from djinn_jupyter.errors import EngineUnavailable, WireError
from djinn_jupyter.wire import codec
from djinn_jupyter.wire.replies import Event

log = logging.getLogger(__name__)

CONFIRMED_SECONDS = 10.0
Heard = Callable[[Event], None]


class Subscriptions:
    """Owns a SUB socket. A client subscribed to all sessions and to some receives each event once."""

    def __init__(self, socket: zmq.Socket[bytes]) -> None:
        self._events = ZmqStream(socket, self._take)
        self._listeners: dict[str, list[Heard]] = {}
        self._confirmed: dict[bytes, asyncio.Event] = {}

    async def listen(self, session: str, heard: Heard) -> Callable[[], None]:
        """Subscribe, and return once the engine has confirmed; the returned function unsubscribes and may be called
        twice. EngineUnavailable without a confirmation within CONFIRMED_SECONDS."""
        topic = codec.topic_of(session)
        if session not in self._listeners:
            self._listeners[session] = []
            self._confirmed[topic] = asyncio.Event()
            self._events.subscribe(topic)
        self._listeners[session].append(heard)
        try:
            await asyncio.wait_for(self._confirmed[topic].wait(), CONFIRMED_SECONDS)
        except TimeoutError:
            self._forget(session, heard)
            raise EngineUnavailable("The engine does not publish its events; see its log with `djinn log`.") from None
        except asyncio.CancelledError:
            self._forget(session, heard)
            raise
        return lambda: self._forget(session, heard)

    def close(self) -> None:
        self._events.close()

    def _forget(self, session: str, heard: Heard) -> None:
        listeners = self._listeners.get(session, [])
        if heard in listeners:
            listeners.remove(heard)
        if not listeners and self._listeners.pop(session, None) is not None:
            topic = codec.topic_of(session)
            self._confirmed.pop(topic)
            self._events.unsubscribe(topic)

    def _take(self, frames: list[zmq.Frame]) -> None:
        try:
            event = codec.decode_event([frame.buffer for frame in frames])
        except WireError as error:
            log.warning("An event could not be read: %s", error)
            return
        if event is None:
            self._confirm(frames[0].bytes)
            return
        for heard in (*self._listeners.get(event.session, ()), *self._listeners.get("", ())):
            heard(event)

    def _confirm(self, topic: bytes) -> None:
        confirmed = self._confirmed.get(topic)
        if confirmed is not None:
            confirmed.set()
