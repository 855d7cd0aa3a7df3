"""The copies into the ring, counted when none is in flight: then a pass has moved exactly the bytes that stream."""

from __future__ import annotations

import time

from djinn_evaluation.afar import is_afar
from djinn_evaluation.validation.opening import AnswerLate
from djinn_jupyter.api.engine import RemoteEngine
from djinn_jupyter.wire.nouns import LayerCopy, WeightsStatistics


def weights_of(engine: RemoteEngine) -> WeightsStatistics:
    """Return where the weights are. They are brought back first where that is this process's to do: at an engine that
    is reached over a line it is its own user's, and a run brings them back."""
    if not is_afar(engine):
        return engine.wake().weights
    found = engine.statistics().weights
    assert found is not None  # every engine has them
    return found


def arrived(engine: RemoteEngine, since: int, timeout: float) -> tuple[LayerCopy, ...]:
    """Return all layer copies with higher numbers than `since`, once the requested ones have arrived; nothing may run
    meanwhile. AnswerLate where they do not arrive within `timeout` seconds."""
    deadline = time.monotonic() + timeout
    while time.monotonic() < deadline:
        copies = engine.copies(since)
        if (copies[-1].number if copies else since) >= weights_of(engine).layer_copies:
            return copies
    raise AnswerLate(f"Copies of layers were sent for and have not come within {timeout:g} s (server.timeout_seconds).")
