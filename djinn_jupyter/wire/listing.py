"""The list of sessions, told in pages: each is small, however many sessions there are and whatever they hold. Beside
it, the statistics of the engine."""

from __future__ import annotations

from collections.abc import Generator
from typing import Annotated, Final

from msgspec import Meta

from djinn_jupyter.wire.nouns import EngineStatistics, SessionDescription
from djinn_jupyter.wire.reply_base import ReplyBase
from djinn_jupyter.wire.request_base import RequestBase

TRIES: Final = 5


class Sessions(ReplyBase):
    """A page of the `total` sessions, from the `first` on."""

    sessions: tuple[SessionDescription, ...]
    first: int = 0
    total: int = 0


class ListSessions(RequestBase[Sessions], unasked="view", browser="asks", resent="anew"):
    """List the sessions in the order of their opening, from the `first` on."""

    first: Annotated[int, Meta(ge=0)] = 0


Listed = Generator[ListSessions, Sessions, tuple[SessionDescription, ...]]


def listed() -> Listed:
    """Yield the requests of all pages, and return their sessions. Where some were opened or closed meanwhile, all are
    asked for again, a few times."""
    for _ in range(TRIES):
        page = yield ListSessions()
        found, total = {one.name: one for one in page.sessions}, page.total
        at = len(page.sessions)
        while page.sessions and page.total == total and at < total:
            page = yield ListSessions(first=at)
            found.update((one.name, one) for one in page.sessions)
            at += len(page.sessions)
        if page.total == total:
            break
    return tuple(found.values())


class Statistics(ReplyBase):
    statistics: EngineStatistics


class ReadStatistics(RequestBase[Statistics], unasked="view", browser="asks", resent="anew"): ...
