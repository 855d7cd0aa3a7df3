"""The ids of requests on the client's side: each has its own, and an error that ends it names it."""

from __future__ import annotations

from typing import Final

from djinn_jupyter.client.connection.arrivals import Answered
from djinn_jupyter.errors import DjinnError
from djinn_jupyter.wire.pieces import PieceRequest
from djinn_jupyter.wire.replies import Reply
from djinn_jupyter.wire.requests import Ping, Request
from djinn_jupyter.wire.traces import Trace, next_request

OF_THE_LINE: Final = Ping | PieceRequest
"""Requests that no person asked for."""


def trace_of(request: Request) -> Trace | None:
    """Return the ids of a new request, called in the context of who asks."""
    return None if isinstance(request, OF_THE_LINE) else next_request()


def naming(trace: Trace | None, answered: Answered) -> Answered:
    """Return the callback of a request that notes its id on an error."""
    if trace is None:
        return answered
    shown = trace.shown

    def told(outcome: Reply | DjinnError) -> None:
        if isinstance(outcome, DjinnError):
            outcome.request = shown
        answered(outcome)

    return told
