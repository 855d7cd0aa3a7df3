"""A value as a view draws it, pooled by the engine. Whatever is computed with is read by `inspect`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from djinn_jupyter.client.connection.channel import ask_for
from djinn_jupyter.wire import requests as ask
from djinn_jupyter.wire.pooling import Pooled

if TYPE_CHECKING:
    from djinn_jupyter.client.stops import StoppedSession


def read_pooled(
    session: StoppedSession,
    site: str | None = None,
    *,
    positions: tuple[int, ...] | None = None,
    ahead: bool = False,
    alone: Sequence[int] | None = None,
    last: int = 0,
    rounded: bool = True,
) -> Pooled:
    """Return a value for a card's picture, by default the stopped one, with a row for each of the positions `alone`,
    and with the `last` positions whole. Cells are exact where they are not to be `rounded`."""
    among = None if alone is None else tuple(alone)
    request = ask.ReadPooled(
        session=session.name, site=site, positions=positions, ahead=ahead, alone=among, last=last, rounded=rounded
    )
    return ask_for(session.channel, request).pooled


@dataclass(frozen=True, slots=True, kw_only=True)
class PatternCells:
    """The most that a card draws of a pattern: the first `heads`, in so many `cells` altogether, and of each head the
    `strongest` keys of the last `queries`."""

    heads: int
    cells: int
    strongest: int
    queries: int


def read_pattern(
    session: StoppedSession,
    site: str | None,
    drawn: PatternCells,
    *,
    positions: tuple[int, ...] | None = None,
    ahead: bool = False,
    rounded: bool = True,
) -> Pooled:
    """Return a pattern for a card, head by head."""
    request = ask.ReadPooled(
        session=session.name,
        site=site,
        positions=positions,
        ahead=ahead,
        rows=1,
        columns=1,  # all heads in one picture, which is not drawn
        heads=drawn.cells,
        most_heads=drawn.heads,
        strongest=drawn.strongest,
        strongest_at=drawn.queries,
        rounded=rounded,
    )
    return ask_for(session.channel, request).pooled
