"""The queues of messages to the clients of a ROUTER, each in order. All replies to a client that does not read wait for
it; its events are dropped beyond a bound, and it is told so before the next one.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Final

import zmq

from djinn_jupyter.wire import codec
from djinn_jupyter.wire.listening import EventsMissed

log = logging.getLogger(__name__)

MESSAGES_QUEUED: Final = 10_000
"""By zmq for each client, events and replies together. An event takes 100 to 300 bytes."""
MISSED: Final = codec.encode_event(0, EventsMissed(session=""))


class PeerQueues:
    """A client is behind from the first message that its queue does not take until there is room again."""

    def __init__(self, router: zmq.Socket[bytes], messages_queued: int = MESSAGES_QUEUED) -> None:
        router.setsockopt(zmq.ROUTER_MANDATORY, 1)
        router.setsockopt(zmq.SNDHWM, messages_queued)
        self._router = router
        self._behind: dict[bytes, deque[Sequence[codec.WireFrame]]] = {}
        self.events_dropped = 0

    @property
    def behind(self) -> bool:
        """True while messages wait for room."""
        return bool(self._behind)

    def send_reply(self, peer: bytes, frames: list[codec.WireFrame]) -> None:
        """Raises zmq.ZMQError where the client has gone."""
        if peer in self._behind:
            self._behind[peer].append(frames)
        else:
            self._send_or_wait(peer, frames)

    def send_event(self, peer: bytes, frames: Sequence[codec.WireFrame]) -> None:
        """Send an event, or drop it where the client is behind. Raises zmq.ZMQError where the client has gone."""
        if peer not in self._behind:
            try:
                return self._send(peer, frames)
            except zmq.Again:
                log.info("A client does not read its events; they are dropped until it does")
                self._behind[peer] = deque([MISSED])
        elif MISSED not in self._behind[peer]:
            self._behind[peer].append(MISSED)
        self.events_dropped += 1

    def forget(self, peer: bytes) -> None:
        """Drop what waits under a routing id."""
        self._behind.pop(peer, None)

    def go_on(self) -> Iterable[bytes]:
        """Send what waits, as far as there is room. Return the clients that have gone, whose messages are dropped."""
        gone = []
        for peer, waiting in tuple(self._behind.items()):
            try:
                while waiting:
                    self._send(peer, waiting[0])
                    waiting.popleft()
            except zmq.Again:
                continue
            except zmq.ZMQError:
                gone.append(peer)
            del self._behind[peer]
        return gone

    def _send_or_wait(self, peer: bytes, frames: list[codec.WireFrame]) -> None:
        try:
            self._send(peer, frames)
        except zmq.Again:
            self._behind[peer] = deque([frames])

    def _send(self, peer: bytes, frames: Sequence[codec.WireFrame]) -> None:
        self._router.send_multipart([peer, *frames], zmq.NOBLOCK, copy=len(frames) == 1)
