"""The request at which a thread is at work: the lines that it logs meanwhile belong to it. Knows no requests, only what
is told of them."""

from __future__ import annotations

from contextvars import ContextVar, Token
from dataclasses import dataclass

from djinn_jupyter.wire.traces import Trace


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggedRequest:
    """A request as a log may tell of it: nothing of the work. `person` is the name of the key behind it, None for the
    engine's own user; `again` is true where an earlier engine was asked first."""

    trace: Trace
    verb: str
    person: str | None = None
    session: str | None = None
    again: bool = False


_present: ContextVar[LoggedRequest | None] = ContextVar("logged", default=None)


def present() -> LoggedRequest | None:
    """Return the request at which this thread is at work."""
    return _present.get()


class WorkingOn:
    """Context of the work on a request. A class and not a generator: the engine enters one for every slice."""

    __slots__ = ("_logged", "_token")
    _token: Token[LoggedRequest | None]

    def __init__(self, logged: LoggedRequest | None) -> None:
        self._logged = logged

    def __enter__(self) -> None:
        self._token = _present.set(self._logged)

    def __exit__(self, *_: object) -> None:
        _present.reset(self._token)
