"""Marks of lists that are as long as something of the model is. An engine holds each to that before it reads an entry
(`engine/requests/extents.py`, and the handlers); a list without such a mark has at most FEW entries."""

from __future__ import annotations

from typing import Annotated, Final

from msgspec import Meta

FEW: Final = 65_536
MOST_TOKENS: Final = 2**20
BOUNDED_BY: Final = "bounded by"


def bounded_by(noun: str, most: int = MOST_TOKENS) -> Meta:
    """Return the mark of a list that has no more entries than there are of a model's or line's `noun`."""
    return Meta(max_length=most, extra={BOUNDED_BY: noun})


Positions = Annotated[tuple[int, ...], Meta(min_length=1), bounded_by("positions")]
Tokens = Annotated[tuple[Annotated[int, Meta(ge=0)], ...], bounded_by("tokens")]
SomeTokens = Annotated[Tokens, Meta(min_length=1)]
