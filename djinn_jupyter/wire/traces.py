"""The ids of a request, from the magic that asked to the layer where it stopped, in W3C's form of a trace context
(https://www.w3.org/TR/trace-context): standard tools read the logs by them.

    trace   what a person asked for: a magic, or one call of the API
    span    one request of it; sent again it keeps its id, so the log of the next engine has the same

They are drawn at random and say nothing of the work. `%load_ext` reads this file: the standard library only.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import Final

TRACEPARENT: Final = r"^(00-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2})?\Z"
ASKED_BY: Final = r"^[%\w .-]*\Z"  # in one line of the log: `$` would let it end in a new one
SHOWN_CHARACTERS: Final = 8  # of an id: a hundred thousand others in a log are told apart from it


@dataclass(frozen=True, slots=True)
class Trace:
    """`asked_by` is the magic, as it is typed; empty for a call of the API."""

    trace_id: str
    span_id: str
    asked_by: str = ""

    @classmethod
    def drawn(cls, asked_by: str = "") -> Trace:
        return cls(secrets.token_hex(16), secrets.token_hex(8), asked_by)

    @classmethod
    def read(cls, traceparent: str, asked_by: str) -> Trace:
        """Return what a message says of itself; ids of its own for one that says nothing."""
        if not traceparent:
            return cls.drawn(asked_by)
        _, trace_id, span_id, _ = traceparent.split("-")
        return cls(trace_id, span_id, asked_by)

    @property
    def traceparent(self) -> str:
        return f"00-{self.trace_id}-{self.span_id}-01"

    @property
    def shown(self) -> str:
        """The part of the trace's id that a person is shown, and finds its lines by."""
        return self.trace_id[:SHOWN_CHARACTERS]


_asking: ContextVar[Trace | None] = ContextVar("asking", default=None)


@contextmanager
def asked_by(name: str) -> Iterator[None]:
    """Let the requests that are made within belong to one trace; within another it is that one's."""
    if _asking.get() is not None:
        yield
        return
    token = _asking.set(Trace.drawn(name))
    try:
        yield
    finally:
        _asking.reset(token)


def next_request() -> Trace:
    """Return the ids of a new request: of the present trace, else of one of its own."""
    asking = _asking.get()
    return Trace.drawn() if asking is None else replace(asking, span_id=secrets.token_hex(8))
