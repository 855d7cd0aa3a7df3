"""What crosses into the ring, counted when nothing is on its way: then a pass has moved exactly what streams."""

from __future__ import annotations

import time

from djinn_jupyter.client.engine import RemoteEngine
from djinn_jupyter.experiments.validation.opening import AnswerLate
from djinn_jupyter.wire.nouns import LayerCopy


def arrived(engine: RemoteEngine, since: int, timeout: float) -> tuple[LayerCopy, ...]:
    """All copies of layers with higher numbers than `since`, once those that were sent for have come; nothing may run
    meanwhile. AnswerLate where they do not come within `timeout` seconds."""
    deadline = time.monotonic() + timeout
    while time.monotonic() < deadline:
        copies = engine.copies(since)
        if (copies[-1].number if copies else since) >= engine.wake().weights.layer_copies:
            return copies
    raise AnswerLate(f"Copies of layers were sent for and have not come within {timeout:g} s (server.timeout_seconds).")
