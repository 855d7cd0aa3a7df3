"""A session between two engines: its move, and this engine's end of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from djinn_jupyter.wire.base import Frozen, OwnerName
from djinn_jupyter.wire.provenance import Provenance
from djinn_jupyter.wire.sessions import MoveId


class Moving(Frozen, frozen=True):
    """`origin` is the engine that the session leaves, `store` the address where it waits meanwhile (None: the folder of
    moves), `person` its owner at the other engine (None: its own user). It is kept in the journals of both engines, so
    that after a kill each checks the decision."""

    move: MoveId
    end: Literal["leaves", "arrives"]
    origin: Provenance
    store: str | None = None
    person: OwnerName | None = None


@dataclass(slots=True)
class MoveUnderWay:
    """`present` is None while the session is only in this engine. Until a move is decided the session answers
    nothing."""

    present: Moving | None = None

    def begin(self, moving: Moving) -> None:
        self.present = moving

    def end(self) -> None:
        self.present = None
