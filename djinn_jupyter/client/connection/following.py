"""A request and the events of its session, in the caller's thread. Knows no kind of request and no kind of event.

Replies and events travel on one socket: the events of a request arrive before its reply.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from queue import SimpleQueue
from typing import Final, Generic, Literal

from djinn_jupyter.client.connection.arrivals import Answer
from djinn_jupyter.client.connection.channel import Channel
from djinn_jupyter.wire.replies import Event
from djinn_jupyter.wire.request_base import RequestBase

REPLIED: Final = "replied"
Feed = SimpleQueue[Event | Literal["replied"]]


class Following(Generic[Answer]):
    """A request that was sent. `reply` is its future."""

    def __init__(self, channel: Channel, feed: Feed, reply: Future[Answer]) -> None:
        self._channel, self._feed, self.reply = channel, feed, reply

    def events(self) -> Iterator[Event]:
        """Yield the session's events as they arrive, until the reply is there."""
        while (item := self._channel.take(self._feed, None)) != REPLIED:
            yield item


@contextmanager
def followed(channel: Channel, session: str, request: RequestBase[Answer]) -> Iterator[Following[Answer]]:
    """Send a request, and hear the events of its session from its beginning on."""
    feed: Feed = SimpleQueue()
    reply, forget = channel.follow(session, request, feed.put)
    try:
        reply.add_done_callback(lambda _: feed.put(REPLIED))
        yield Following(channel, feed, reply)
    finally:
        forget()
