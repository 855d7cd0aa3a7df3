"""The memory that sessions hold on the device, summed over them, beside what the engine's accounting counts for all: a
kind of holder that it forgot would be in the sum alone."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from djinn_evaluation.memory import in_use, weights_on_device
from djinn_jupyter.api.engine import RemoteEngine
from djinn_jupyter.api.session import RemoteSession
from djinn_jupyter.errors import DjinnError
from djinn_jupyter.units import GIB, spell_bytes
from djinn_jupyter.wire.nouns import EngineStatistics

SECONDS, PERIOD_SECONDS = 30.0, 0.02  # for moves under way to end


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """Bytes on the device while nothing moves."""

    sessions: int  # each session asked for what it holds
    counted: int  # by the accounting: pages in use, working copies, stops and states

    def fields(self) -> dict[str, Any]:
        return {"held_by_sessions_gb": self.sessions / GIB, "counted_for_sessions_gb": self.counted / GIB}

    def failures(self) -> list[str]:
        if self.sessions <= self.counted:
            return []
        return [
            f"The sessions hold {spell_bytes(self.sessions)} on the device, and the engine's accounting counts "
            f"{spell_bytes(self.counted)}: something that they keep is not counted."
        ]


def held_by(engine: RemoteEngine, sessions: Sequence[RemoteSession]) -> Held:
    """Ask all sessions, which share no page, between two equal readings of the accounting. DjinnError where it does not
    come to rest."""
    deadline = time.monotonic() + SECONDS
    while time.monotonic() < deadline:
        before = engine.statistics()
        found = sum(session.describe().device_bytes for session in sessions)
        after = engine.statistics()
        if _accounts(before) == _accounts(after):
            return Held(sessions=found, counted=in_use(after) - weights_on_device(after))
        time.sleep(PERIOD_SECONDS)  # sessions are on their way to another tier
    raise DjinnError("The engine went on moving sessions while none was asked for.")


def _accounts(reading: EngineStatistics) -> tuple[object, ...]:
    return reading.budget, reading.slabs, reading.tiers
