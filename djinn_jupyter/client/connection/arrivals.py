"""The requests of a connection that wait for their reply, and the large replies that arrive in pieces."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, TypeVar

from djinn_jupyter.client.connection.arrival import Arrival
from djinn_jupyter.client.connection.line_rate import LineRate
from djinn_jupyter.client.connection.so_far import SoFar
from djinn_jupyter.errors import DjinnError, EngineError, EngineUnavailable, WireError
from djinn_jupyter.wire import codec
from djinn_jupyter.wire.pieces import DropPieces, InPieces
from djinn_jupyter.wire.reply_base import ReplyBase
from djinn_jupyter.wire.request_base import RequestBase

Answer = TypeVar("Answer", bound=ReplyBase)
Answered = Callable[[ReplyBase | DjinnError], None]
AnsweredBy = Callable[[Answer | DjinnError], None]
GIVEN_UP = "The reply was given up on its way; ask for it again."


class Post(Protocol):
    def __call__(self, request: RequestBase[Answer], answered: AnsweredBy[Answer], /) -> int: ...


@dataclass(slots=True)
class Sent:
    """A request without its reply, and the frames to send again on the next line; a Hello is not sent again."""

    frames: list[codec.WireFrame]
    answered: Answered
    given_up: bool = False  # a large reply to it is not read
    in_pieces: bool = False  # it leaves in pieces


def checked(request: RequestBase[Answer], answered: AnsweredBy[Answer]) -> Answered:
    """Return the callback of a request for whatever comes: a reply that does not answer it is a WireError."""

    def told(outcome: ReplyBase | DjinnError) -> None:
        if isinstance(outcome, DjinnError) or request.is_answered_by(outcome):
            answered(outcome)
        else:
            answered(WireError(f"The engine answered {type(request).__name__} with {type(outcome).__name__}."))

    return told


def settle(answer: asyncio.Future[Answer], outcome: Answer | DjinnError) -> None:
    """Set the result or the error of a future, unless its asker has stopped waiting."""
    if answer.done():
        return
    if isinstance(outcome, DjinnError):
        answer.set_exception(outcome)
    else:
        answer.set_result(outcome)


class Arrivals:
    """`rate` is that of the line. `arrived` is called with the number of a request, and the frames of its reply when
    they are all there."""

    def __init__(self, post: Post, arrived: Callable[[int, Sent, list[codec.WireFrame]], None]) -> None:
        self.rate = LineRate()
        self.latest: SoFar | None = None  # of the one that ended last
        self._post, self._arrived = post, arrived
        self._under_way: dict[int, tuple[Sent, Arrival]] = {}

    @property
    def progress(self) -> SoFar | None:
        """The part of the oldest one that has come; read from any thread."""
        return next((arrival.progress for _, arrival in tuple(self._under_way.values())), None)

    def begin(self, number: int, told: InPieces, sent: Sent) -> None:
        """Read the reply to a request."""
        arrival = Arrival(
            number, told, post=self._post, rate=self.rate, ended=lambda outcome: self._end(number, outcome)
        )
        self._under_way[number] = sent, arrival
        if sent.given_up:
            self.give_up(number)
        else:
            arrival.begin()

    def give_up(self, number: int) -> bool:
        """Read no more of a reply. Return False where none of that number is under way."""
        if number not in self._under_way:
            return False
        self._under_way[number][1].give_up()
        self._end(number, EngineError(GIVEN_UP))
        return True

    def line_is_back(self) -> None:
        """Begin to measure again: the time without a line says nothing of its rate."""
        self.rate.begin(time.monotonic())

    def asked_again(self) -> dict[int, Sent]:
        """Return the requests whose replies went with their engine: they begin anew at the next one."""
        under_way, self._under_way = self._under_way, {}
        for _, arrival in under_way.values():
            arrival.give_up()
        return {number: sent for number, (sent, _) in under_way.items()}

    def lose(self, sentence: str) -> None:
        """End all of them, which no engine answers any more."""
        for sent in self.asked_again().values():
            sent.answered(EngineUnavailable(sentence))

    def _end(self, number: int, outcome: list[codec.WireFrame] | DjinnError) -> None:
        sent, arrival = self._under_way.pop(number)
        self.latest = arrival.progress
        self._post(DropPieces(of=number), lambda dropped: None)
        if isinstance(outcome, DjinnError):
            sent.answered(outcome)
        else:
            self._arrived(number, sent, outcome)
