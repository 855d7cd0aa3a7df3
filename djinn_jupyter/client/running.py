"""Wait for a run: stream its tokens, and pause it on a KeyboardInterrupt."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future
from queue import Empty, SimpleQueue
from typing import Literal

from djinn_jupyter.client.connection.channel import Channel
from djinn_jupyter.wire.replies import Event, Reply, SessionFailed, SessionFinished, SessionPaused, TokenSampled
from djinn_jupyter.wire.requests import Pause, Request

OnToken = Callable[[TokenSampled], None]
LAST_EVENTS_SECONDS = 2.0  # replies and events travel on two sockets; the last tokens may come after the reply
_ENDS = (SessionPaused, SessionFinished, SessionFailed)


def run_until_stop(channel: Channel, session: str, request: Request, on_token: OnToken | None) -> tuple[Reply, bool]:
    """Return the reply of a run, and True if it was interrupted; `on_token` is called in the caller's thread.

    On a KeyboardInterrupt, ask the engine to pause and wait for the reply: the session is then intact, and the caller
    knows its stop. A second interrupt is raised at once.
    """
    if on_token is None:
        return _wait(channel, session, channel.ask(request))
    feed: SimpleQueue[Event | Literal["replied"]] = SimpleQueue()
    forget = channel.listen(session, feed.put)
    try:
        reply = channel.ask(request)
        reply.add_done_callback(lambda _: feed.put("replied"))
        try:
            _follow(channel, feed, on_token)
        except KeyboardInterrupt:
            return _pause(channel, session, reply), True
        return reply.result(), False
    finally:
        forget()


def _wait(channel: Channel, session: str, reply: Future[Reply]) -> tuple[Reply, bool]:
    try:
        return reply.result(), False
    except KeyboardInterrupt:
        return _pause(channel, session, reply), True


def _pause(channel: Channel, session: str, reply: Future[Reply]) -> Reply:
    channel.ask(Pause(session=session))
    return reply.result()


def _follow(channel: Channel, feed: SimpleQueue[Event | Literal["replied"]], on_token: OnToken) -> None:
    """Pass tokens to `on_token` until both the reply and the event that ends the run have arrived; after the reply wait
    at most LAST_EVENTS_SECONDS for that event."""
    deadline: float | None = None
    ended = False
    while not (ended and deadline is not None):
        try:
            item = channel.take(feed, None if deadline is None else max(0.0, deadline - time.monotonic()))
        except Empty:
            return
        if isinstance(item, TokenSampled):
            on_token(item)
        elif item == "replied":
            deadline = time.monotonic() + LAST_EVENTS_SECONDS
        elif isinstance(item, _ENDS):
            ended = True
