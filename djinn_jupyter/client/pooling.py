"""A value as a view draws it, pooled by the engine. Whatever is computed with is read by `inspect`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from djinn_jupyter.client.connection.channel import ask_for
from djinn_jupyter.wire import requests as ask
from djinn_jupyter.wire.pooling import Pooled
from djinn_jupyter.wire.replies import PooledRead

if TYPE_CHECKING:
    from djinn_jupyter.client.stops import StoppedSession


def read_pooled(
    session: StoppedSession,
    site: str | None = None,
    *,
    ahead: bool = False,
    alone: Sequence[int] | None = None,
    last: int = 0,
) -> Pooled:
    """Return a value for a card's picture, by default the stopped one, with a row for each of the positions `alone`,
    and with the `last` positions whole."""
    among = None if alone is None else tuple(alone)
    request = ask.ReadPooled(session=session.name, site=site, ahead=ahead, alone=among, last=last)
    return ask_for(session.channel, request, PooledRead).pooled
