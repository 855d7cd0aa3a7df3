"""Send the weights away, bring them back, and say how layers came through the ring."""

from __future__ import annotations

from typing import TYPE_CHECKING

from djinn_jupyter.engine.mailbox import Holder
from djinn_jupyter.errors import IllegalMove
from djinn_jupyter.wire import requests as ask
from djinn_jupyter.wire.replies import Copies, WeightsMoved

if TYPE_CHECKING:
    from djinn_jupyter.engine.engine import Engine


def nap(engine: Engine, request: ask.Nap, holder: Holder) -> WeightsMoved:
    """IllegalMove while a forward pass is under way, UsageError where the weights could not come back."""
    busy = [session.name for session in engine.sessions.values() if session.job is not None]
    if busy:
        raise IllegalMove(f"Session {busy[0]!r} is running and needs the weights; pause it first.")
    seconds = engine.weights.nap()
    return WeightsMoved(weights=engine.weights.statistics(), seconds=seconds)


def wake(engine: Engine, request: ask.Wake, holder: Holder) -> WeightsMoved:
    seconds = engine.weights.wake()
    return WeightsMoved(weights=engine.weights.statistics(), seconds=seconds)


def read_copies(engine: Engine, request: ask.ReadCopies, holder: Holder) -> Copies:
    return Copies(copies=engine.weights.copies(request.since))
