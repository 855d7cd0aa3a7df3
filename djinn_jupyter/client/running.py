"""Wait for a run: stream its tokens, and pause it on a KeyboardInterrupt."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future

from djinn_jupyter.client.connection.arrivals import Answer
from djinn_jupyter.client.connection.channel import Channel
from djinn_jupyter.client.connection.following import followed
from djinn_jupyter.client.waiting import waited
from djinn_jupyter.wire.replies import Finished, Paused, TokenSampled
from djinn_jupyter.wire.requests import Pause, RequestBase

OnToken = Callable[[TokenSampled], None]
RunReply = Paused | Finished
RunRequest = RequestBase[RunReply]


def run_until_stop(
    channel: Channel, session: str, request: RequestBase[Answer], on_token: OnToken | None
) -> tuple[Answer, bool]:
    """Return the reply of a run, and True if it was interrupted; `on_token` is called in the caller's thread.

    On a KeyboardInterrupt, ask the engine to pause and wait for the reply: the session is then intact, and the caller
    knows its stop. A second interrupt is raised at once, and so is the first where a long prompt is still on its way,
    which is taken back, or while the line is down: the engine hears of the pause when it is back.
    """
    if on_token is None:
        with waited("The run", "pauses it"):
            return _wait(channel, session, channel.ask(request))
    with followed(channel, session, request) as run:
        try:
            for event in run.events():
                if isinstance(event, TokenSampled):
                    on_token(event)
        except KeyboardInterrupt:
            return _pause(channel, session, run.reply), True
        return run.reply.result(), False


def _wait(channel: Channel, session: str, reply: Future[Answer]) -> tuple[Answer, bool]:
    try:
        return reply.result(), False
    except KeyboardInterrupt:
        return _pause(channel, session, reply), True


def _pause(channel: Channel, session: str, reply: Future[Answer]) -> Answer:
    if channel.take_back(reply):
        raise KeyboardInterrupt
    channel.ask(Pause(session=session))
    if channel.down_since is not None:
        raise KeyboardInterrupt
    return reply.result()
