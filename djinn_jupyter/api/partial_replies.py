"""Replies to work that has parts: an interrupt ends it in the engine, and the parts that were done are kept."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import Final

from djinn_jupyter.api.interrupts import WorkInterrupted
from djinn_jupyter.errors import DjinnError
from djinn_jupyter.link.channel import Channel, ask_for, followed
from djinn_jupyter.link.waiting import far_within
from djinn_jupyter.remote.large_messages import Answer
from djinn_jupyter.wire.base import WorkProgressed
from djinn_jupyter.wire.requests import Pause, SessionRequest

ITS_PARTS: Final = "`kept` of this error has the parts that were done."


def replied_in_parts(
    channel: Channel, request: SessionRequest[Answer], work: str, kept: Callable[[Answer], object]
) -> Answer:
    """Return the reply to a request whose work has parts; the line of the wait says how far it is. On an interrupt, and
    where the session is paused from elsewhere, the engine replies with those that were done, of which WorkInterrupted
    has what is `kept`. A second interrupt, and one where there are no parts yet or nothing is kept, is a
    KeyboardInterrupt."""
    with followed(channel, request.session, request) as under_way:
        try:
            for event in under_way.events():
                if isinstance(event, WorkProgressed):
                    far_within(str(event.progress))
            reply = under_way.reply.result()
            if reply.is_whole_for(request):
                return reply
        except KeyboardInterrupt:
            reply = _ended(channel, request.session, under_way.reply)
    parts = kept(reply)
    if parts is None:
        raise KeyboardInterrupt
    raise WorkInterrupted(f"{work} was interrupted, and the engine told to end it. {ITS_PARTS}", parts)


def _ended(channel: Channel, session: str, reply: Future[Answer]) -> Answer:
    """Have the work of a session end with the parts that are done, and return its reply."""
    if channel.take_back(reply) or channel.down_since is not None:
        raise KeyboardInterrupt
    try:
        if not ask_for(channel, Pause(session=session)).was_running and not reply.done():
            raise KeyboardInterrupt
        return reply.result()
    except DjinnError:
        raise KeyboardInterrupt from None
