"""The ids of requests on the client's side: each has its own, and an error that ends it names it."""

from __future__ import annotations

from djinn_jupyter.client.connection.arrivals import Answer, AnsweredBy
from djinn_jupyter.errors import DjinnError
from djinn_jupyter.wire.requests import Request
from djinn_jupyter.wire.traces import Trace, next_request


def trace_of(request: Request) -> Trace | None:
    """Return the ids of a new request, called in the context of who asks; None for one of the line itself."""
    return None if type(request).terms.unasked == "line" else next_request()


def naming(trace: Trace | None, answered: AnsweredBy[Answer]) -> AnsweredBy[Answer]:
    """Return the callback of a request that notes its id on an error."""
    if trace is None:
        return answered
    shown = trace.shown

    def told(outcome: Answer | DjinnError) -> None:
        if isinstance(outcome, DjinnError):
            outcome.request = shown
        answered(outcome)

    return told
