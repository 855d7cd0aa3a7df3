"""The seam at which other persons and other machines come in: what each owner of sessions may ask and receive
(`Admission`), and how the messages of one client cross (`Transport`). Here are the engine's own user and the private
folder; `remote` has the rest."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, Protocol, TypeVar

from djinn_jupyter.engine.session.session import RequestId
from djinn_jupyter.errors import UsageError
from djinn_jupyter.wire import codec
from djinn_jupyter.wire import requests as ask
from djinn_jupyter.wire.base import person_of
from djinn_jupyter.wire.pieces import sizes_of
from djinn_jupyter.wire.replies import Described, Event, Failed, Opened, Reply
from djinn_jupyter.wire.requests import Request
from djinn_jupyter.wire.texts import in_quotes

Answer = Callable[[Reply], None]
Owner = str | None
"""The name of an owner of sessions, which means nothing here; None is the engine's own user."""
Heard = TypeVar("Heard", bound=Reply | Event)
UNKNOWN_KEY: Final = b"unknown"  # of an unknown connection, admitted nowhere


class Admission(Protocol):
    def asks(self, owner: Owner, request: Request, answer: Answer) -> tuple[Request, Answer]:
        """Return the request in the engine's form, and the callback of its answer. DjinnError if the owner may not ask
        it."""

    def hears(self, owner: Owner, message: Heard) -> Heard | None:
        """Return a message in the owner's form; None for an event of another's session."""


class Alone:
    """The admission of the engine's own user, where no others come."""

    def asks(self, owner: Owner, request: Request, answer: Answer) -> tuple[Request, Answer]:
        if (unknown := request.needs_others) is not None:
            raise UsageError(unknown)
        return as_own_user(request, answer)

    def hears(self, owner: Owner, message: Heard) -> Heard | None:
        return message


def as_own_user(request: Request, answer: Answer) -> tuple[Request, Answer]:
    """Return a request of the engine's own user, and the callback of its answer. That user enters another's session as
    a guest: its owner's kernel still holds it. Raises UsageError where a session or a checkpoint would get a name that
    may be another's, here or in an engine that listens later."""
    made = request.made or request.saved
    if made is None or person_of(made) is None:
        return request, answer
    refusal = UsageError(
        f"{in_quotes(made)} would be the name of a person's in an engine that listens, which others reach by their "
        "keys: choose a name without @."
    )
    if not isinstance(request, ask.Open) or request.fresh:
        raise refusal
    return ask.Describe(session=made), lambda reply: answer(_as_opened(reply, refusal))


def _as_opened(reply: Reply, none_there: UsageError) -> Reply:
    """Return the answer to an Open that was asked as a Describe."""
    match reply:
        case Described(session=session):
            return Opened(session=session, created=False)
        case Failed(code="UnknownSession"):
            return Failed.of(none_there)
    return reply


Frames = list[codec.WireFrame]
MESSAGE_BYTES: Final = 500  # overhead of Python and zmq for a message, besides its frames


def bytes_of(frames: Sequence[codec.WireFrame]) -> int:
    """Return the memory that a message takes."""
    return MESSAGE_BYTES + sum(sizes_of(frames))


class Transport:
    """The messages of one client over the private folder: it is its connection, and ends with it, and each message
    crosses whole, once."""

    may_return = False

    def __init__(self, peer: bytes, key: bytes) -> None:
        """Take the routing id of the client's present connection, and the key by which it came."""
        self.peer, self.key = peer, key

    def take(self, number: int) -> bool:
        """Record a request. Return False for a repeated one."""
        return True

    def known_as(self, number: int) -> RequestId | None:
        """Return the id by which a session recognizes a repeated request; None for a client that repeats none."""
        return None

    def reply_again(self, envelope: codec.Envelope[Request]) -> Frames | None:
        """Return the earlier reply of a repeated request; None where it is to be executed again."""
        return None

    def outgoing(self, number: int, reply: Reply, frames: Frames) -> Frames:
        """Return the frames to send for a reply."""
        return frames

    def confirm(self, number: int) -> None:
        """Record that the client has the replies up to that number."""
