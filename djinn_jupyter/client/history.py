"""The stops of a session that `back` can go to, as a table with the one where it stands."""

from __future__ import annotations

from typing import Any, Self

from djinn_jupyter.client.frames import Listing
from djinn_jupyter.wire.nouns import StopDescription
from djinn_jupyter.wire.replies import History


class StopHistory(Listing[StopDescription]):
    """The stops of a session, oldest first: a tuple of them, and a table. `present` is the index of the one where it
    stands, None where it runs or has finished."""

    present: int | None

    @classmethod
    def of(cls, reply: History) -> Self:
        """Return the stops of a reply."""
        made = cls(reply.stops)
        made.present = reply.present
        return made

    @property
    def stops(self) -> tuple[StopDescription, ...]:
        """The stops as a plain tuple."""
        return tuple(self)

    def columns(self) -> dict[str, list[Any]]:
        """Return the fields of the stops as lists by column, and `present`: True for the one where it stands. No column
        where there is no stop."""
        found = super().columns()
        return {**found, "present": [stop.index == self.present for stop in self]} if self else found
