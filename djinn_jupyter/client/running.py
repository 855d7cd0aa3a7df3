"""Wait for a run: stream its tokens, and pause it on a KeyboardInterrupt."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future

from djinn_jupyter.client.connection.channel import Channel
from djinn_jupyter.client.connection.following import Following, followed
from djinn_jupyter.wire.replies import (
    Event,
    Reply,
    SessionClosed,
    SessionFailed,
    SessionFinished,
    SessionPaused,
    SessionRunning,
    TokenSampled,
)
from djinn_jupyter.wire.requests import Pause, Request

OnToken = Callable[[TokenSampled], None]
LAST_EVENTS_SECONDS = 2.0  # the last tokens may come after the reply
_ENDS = (SessionPaused, SessionFinished, SessionFailed, SessionClosed)


def run_until_stop(channel: Channel, session: str, request: Request, on_token: OnToken | None) -> tuple[Reply, bool]:
    """Return the reply of a run, and True if it was interrupted; `on_token` is called in the caller's thread.

    On a KeyboardInterrupt, ask the engine to pause and wait for the reply: the session is then intact, and the caller
    knows its stop. A second interrupt is raised at once.
    """
    if on_token is None:
        return _wait(channel, session, channel.ask(request))
    with followed(channel, session, request) as run:
        try:
            _follow(run, on_token)
        except KeyboardInterrupt:
            return _pause(channel, session, run.reply), True
        return run.reply.result(), False


def _wait(channel: Channel, session: str, reply: Future[Reply]) -> tuple[Reply, bool]:
    try:
        return reply.result(), False
    except KeyboardInterrupt:
        return _pause(channel, session, reply), True


def _pause(channel: Channel, session: str, reply: Future[Reply]) -> Reply:
    channel.ask(Pause(session=session))
    return reply.result()


def _follow(run: Following, on_token: OnToken) -> None:
    """Pass tokens to `on_token` until both the reply and the event that ends the run have arrived; after the reply wait
    at most LAST_EVENTS_SECONDS for that event. A request that was refused began no run, and nothing is waited for."""
    begun = ended = False
    for event in run.events():
        if isinstance(event, SessionRunning):
            begun, ended = True, False  # an end before it was that of a former run, or session of that name
        ended = _heeded(event, on_token) or ended
    refused = run.reply.exception() is not None and not begun
    if not ended and not refused:
        any(_heeded(event, on_token) for event in run.later_events(LAST_EVENTS_SECONDS))


def _heeded(event: Event, on_token: OnToken) -> bool:
    """Pass a token on; return whether the event ends a run."""
    if isinstance(event, TokenSampled):
        on_token(event)
    return isinstance(event, _ENDS)
