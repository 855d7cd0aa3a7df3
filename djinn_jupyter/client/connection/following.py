"""A request and the events of its session, in the caller's thread. Knows no kind of request and no kind of event.

Replies and events travel on two sockets, so events may come after the reply that ends their request.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from queue import Empty, SimpleQueue
from typing import Final, Literal

from djinn_jupyter.client.connection.channel import Channel
from djinn_jupyter.wire.replies import Event, Reply
from djinn_jupyter.wire.requests import Request

REPLIED: Final = "replied"
Feed = SimpleQueue[Event | Literal["replied"]]


class Following:
    """A request that was sent. `reply` is its future."""

    def __init__(self, channel: Channel, feed: Feed, reply: Future[Reply]) -> None:
        self._channel, self._feed, self.reply = channel, feed, reply

    def events(self) -> Iterator[Event]:
        """Yield the session's events as they arrive, until the reply is there."""
        while (item := self._channel.take(self._feed, None)) != REPLIED:
            yield item

    def later_events(self, seconds: float) -> Iterator[Event]:
        """Yield the events that are there already, and those that arrive within so many seconds."""
        deadline = time.monotonic() + seconds
        while True:
            try:
                item = self._channel.take(self._feed, max(0.0, deadline - time.monotonic()))
            except Empty:
                return
            if item != REPLIED:
                yield item


@contextmanager
def followed(channel: Channel, session: str, request: Request) -> Iterator[Following]:
    """Send a request once the events of its session are heard."""
    feed: Feed = SimpleQueue()
    forget = channel.listen(session, feed.put)
    try:
        reply = channel.ask(request)
        reply.add_done_callback(lambda _: feed.put(REPLIED))
        yield Following(channel, feed, reply)
    finally:
        forget()
