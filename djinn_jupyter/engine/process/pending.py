"""The requests that wait for their reply, each with a line in the log when it comes and one when it is answered. Called
from the thread of the service.

    request.began    its ids, its verb, whose it is and for which session
    request.ended    the same, its outcome (the reply, or the error's class), how long it took, and the site

Nothing of what was asked or answered is told: no text, token or value, and no message of an error, which may quote
them.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from djinn_jupyter.engine.log.lines import told
from djinn_jupyter.engine.log.logged import LoggedRequest, WorkingOn
from djinn_jupyter.engine.process.persons import named_by
from djinn_jupyter.wire.codec import Envelope
from djinn_jupyter.wire.names import label
from djinn_jupyter.wire.naming import of_person, person_of
from djinn_jupyter.wire.replies import Edited, Failed, Paused, Reply
from djinn_jupyter.wire.requests import Request

log = logging.getLogger(__name__)

Key = tuple[bytes, int]
MOST_OF_PERSON: Final = 1000
"""Requests that one person with a key may have at the engine; others' wait behind them."""
GONE: Final = "Gone"  # the outcome for a client whose connection is another's now: it hears none


@dataclass(frozen=True, slots=True)
class Begun:
    logged: LoggedRequest
    level: int
    at: float


class PendingRequests:
    """By client and number. One that was given up counts as its person's until the engine has answered it."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._begun: dict[Key, Begun] = {}
        self._given_up: dict[Key, str | None] = {}
        self._of_person: Counter[str | None] = Counter()

    def __len__(self) -> int:
        return len(self._begun)

    def __contains__(self, key: object) -> bool:
        return key in self._begun

    def __iter__(self) -> Iterator[Key]:
        return iter(tuple(self._begun))

    def has_many_of(self, person: str | None) -> bool:
        """Return whether so many requests of a person with a key wait for their answers that no more are taken."""
        return person is not None and self._of_person[person] >= MOST_OF_PERSON

    def was_given_up(self, key: Key) -> bool:
        return key in self._given_up

    def begin(self, key: Key, logged: LoggedRequest, request: Request) -> None:
        level = logging.DEBUG if type(request).terms.unasked else logging.INFO
        self._begun[key] = Begun(logged, level, self._clock())
        self._of_person[logged.person] += 1
        if log.isEnabledFor(level):
            with WorkingOn(logged):
                again = {"again": True} if logged.again else {}
                log.log(level, "%s began", logged.verb, extra=told("request.began", **again))

    def give_up(self, key: Key, told: Reply | None) -> None:
        """Note that a request gets another reply, or none, while the engine's is still to come."""
        self._given_up[key] = self._begun[key].logged.person
        self._log_end(self._begun.pop(key), told)

    def forget(self, key: Key) -> None:
        """Note that the engine has answered a request that was given up."""
        self._of_person[self._given_up.pop(key)] -= 1

    def end(self, key: Key, reply: Reply) -> None:
        """Note the reply that a request gets."""
        begun = self._begun.pop(key)
        self._of_person[begun.logged.person] -= 1
        self._log_end(begun, reply)

    def _log_end(self, begun: Begun, reply: Reply | None) -> None:
        if log.isEnabledFor(begun.level):
            outcome, site, seconds = _outcome(reply), _site(reply), round(self._clock() - begun.at, 6)
            extra = told("request.ended", outcome=outcome, seconds=seconds, **({"site": site} if site else {}))
            with WorkingOn(begun.logged):
                at = f" at {site}" if site else ""
                log.log(begun.level, "%s ended: %s%s, %.6g s", begun.logged.verb, outcome, at, seconds, extra=extra)

    def clients(self) -> set[bytes]:
        return {client for client, _ in self._begun}

    def of(self, client: bytes) -> list[Key]:
        return sorted(key for key in self._begun if key[0] == client)


def logged_request(envelope: Envelope[Request], person: str | None, *, again: bool) -> LoggedRequest:
    """Return what the log tells of a request."""
    named = named_by(envelope.body)
    return LoggedRequest(
        trace=envelope.trace,
        verb=type(envelope.body).__name__,
        person=person,
        session=None if named is None else _shown(named, person),
        again=again,
    )


def _shown(session: str, person: str | None) -> str:
    """Return a session's name with its person's; of one that is a notebook's path the notebook's name."""
    owner = person_of(session) or person
    if owner is None:
        return label(session)
    return of_person(owner, label(session.removeprefix(of_person(owner, ""))))


def _outcome(reply: Reply | None) -> str:
    if reply is None:
        return GONE
    return reply.code if isinstance(reply, Failed) else type(reply).__name__


def _site(reply: Reply | None) -> str | None:
    return reply.site if isinstance(reply, Paused | Edited) else None
