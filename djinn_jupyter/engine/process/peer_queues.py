"""The queues of messages to the clients of a ROUTER, each in order. Replies to a client that does not read wait for it;
its events are dropped beyond a bound, and it is told so before the next one. No person leaves more than a number of
bytes unread (unread.py).
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

import zmq

from djinn_jupyter.engine.process.unread import LUMP_BYTES, Tracker, Unread, bytes_of
from djinn_jupyter.wire import codec
from djinn_jupyter.wire.keys import PublicKey
from djinn_jupyter.wire.listening import EventsMissed

log = logging.getLogger(__name__)

MESSAGES_QUEUED: Final = 10_000
"""By zmq for each client, events and replies together. An event takes 100 to 300 bytes."""
MISSED: Final = codec.encode_event(0, EventsMissed(session=""))
Frames = Sequence[codec.WireFrame]


@dataclass(slots=True)
class _Behind:
    """The messages that wait for one client, and the person it was of when the first one began to wait."""

    person: PublicKey
    messages: deque[Frames] = field(default_factory=deque)


class PeerQueues:
    """A client is behind from the first message that its queue does not take until there is room again. `person` tells
    by the key of a client's connection whose it is, empty for the engine's own user."""

    def __init__(
        self,
        router: zmq.Socket[bytes],
        messages_queued: int,
        person: Callable[[bytes], PublicKey],
    ) -> None:
        router.setsockopt(zmq.ROUTER_MANDATORY, 1)
        router.setsockopt(zmq.SNDHWM, messages_queued)
        self._router, self._person = router, person
        self._behind: dict[bytes, _Behind] = {}
        self._unread = Unread()
        self.events_dropped = 0

    @property
    def behind(self) -> bool:
        """True while messages wait for room."""
        return bool(self._behind)

    def is_behind(self, peer: bytes) -> bool:
        return peer in self._behind

    def has_room(self, peer: bytes, frames: Frames = ()) -> bool:
        """Return whether the person behind a client has read so much that a message may be sent."""
        return self._unread.has_room(self._person(peer), bytes_of(frames) if frames else 0)

    def takes_no_more(self, peer: bytes) -> bool:
        return self._unread.takes_no_more(self._person(peer))

    def send_reply(self, peer: bytes, frames: Frames) -> None:
        """Raises zmq.ZMQError where the client has gone."""
        if peer not in self._behind:
            try:
                return self._send(peer, frames)
            except zmq.Again:
                pass
        self._wait(peer, frames)

    def send_event(self, peer: bytes, frames: Frames) -> None:
        """Send an event, or drop it where the client is behind, or its person. Raises zmq.ZMQError where the client has
        gone."""
        if peer not in self._behind:
            try:
                if self.has_room(peer, frames):
                    return self._send(peer, frames)
            except zmq.Again:
                pass
            log.info("A client does not read its events; they are dropped until it does")
            self._wait(peer, MISSED)
        elif MISSED not in self._behind[peer].messages:
            self._wait(peer, MISSED)
        self.events_dropped += 1

    def forget(self, peer: bytes) -> None:
        """Drop what waits under a routing id."""
        if (behind := self._behind.pop(peer, None)) is not None:
            self._unread.wait(behind.person, peer, -sum(map(bytes_of, behind.messages)))

    def go_on(self) -> Iterable[bytes]:
        """Send what waits, as far as there is room. Return the clients that have gone, whose messages are dropped."""
        gone = []
        for peer, behind in tuple(self._behind.items()):
            try:
                while behind.messages:
                    self._send(peer, behind.messages[0])
                    self._unread.wait(behind.person, peer, -bytes_of(behind.messages.popleft()))
            except zmq.Again:
                continue
            except zmq.ZMQError:
                gone.append(peer)
            self.forget(peer)
        return gone

    def keep_only(self, known: Callable[[bytes], bool]) -> list[bytes]:
        """Forget what clients that are not known any more have read. Return those that have to be let go, because their
        person reads nothing."""
        return self._unread.keep_only(known)

    def full(self) -> tuple[PublicKey, ...]:
        """Return the persons who leave too much unread. May be called from any thread."""
        return self._unread.full

    def _wait(self, peer: bytes, frames: Frames) -> None:
        behind = self._behind.setdefault(peer, _Behind(self._person(peer)))
        behind.messages.append(frames)
        self._unread.wait(behind.person, peer, bytes_of(frames))

    def _send(self, peer: bytes, frames: Frames) -> None:
        person, count = self._person(peer), bytes_of(frames)
        if self._unread.is_tracked(person, peer, count):
            self._unread.take(person, peer, count, self._send_tracked(peer, frames))
        else:
            self._router.send_multipart([peer, *frames], zmq.NOBLOCK, copy=count < LUMP_BYTES)
            self._unread.take(person, peer, count, None)

    def _send_tracked(self, peer: bytes, frames: Frames) -> Tracker:
        last = zmq.Frame(frames[-1], track=True, copy=False)
        self._router.send_multipart([peer, *frames[:-1], last], zmq.NOBLOCK, copy=False)
        tracker: Tracker | None = last.tracker
        assert tracker is not None
        return tracker
