"""Figures of stopped values, computed by the engine over the whole of them: of one value, and of two apart."""

from __future__ import annotations

from typing import TYPE_CHECKING

from djinn_jupyter.client.connection.channel import ask_for
from djinn_jupyter.wire import requests as ask
from djinn_jupyter.wire.replies import Compared, FiguresRead

if TYPE_CHECKING:
    from djinn_jupyter.client.stops import StoppedSession


def read_figures(
    session: StoppedSession, site: str, *, positions: tuple[int, ...] | None = None, each: bool = False
) -> FiguresRead:
    """Return the figures of a value, with those of each position where they are asked for."""
    request = ask.ReadFigures(session=session.name, site=site, positions=positions, each=each)
    return ask_for(session.channel, request)


def compare(session: StoppedSession, other: StoppedSession, *, last: int) -> Compared:
    """Return how far the stopped values of two sessions of one engine are apart, with the distances of the `last`
    positions that both passes have. UsageError where they stand at other sites."""
    return ask_for(session.channel, ask.Compare(session=session.name, other=other.name, last=last))
