"""The strength of a session's claim to its place on the device, from its state, holder and notebook signals.

Values only: knows neither torch nor clocks.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Final

from djinn_jupyter.wire.nouns import Activity, SessionState


class Claim(IntEnum):
    """The weakest is evicted first. DETACHED: no kernel holds it. IDLE: its run has ended. PAUSED: a pass is stopped.
    STEPPING: a cell uses it now. RUNNING: passes are being run; it is never evicted."""

    DETACHED = 0
    IDLE = 1
    PAUSED = 2
    STEPPING = 3
    RUNNING = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Signals:
    """The last signals of a session's notebook. `used`: a cell that uses the session runs, or is about to; a kernel
    busy with other work does not count. `focused`: its user has it in view; None where that is unknown. `gone`: its
    kernel has ended."""

    used: bool = False
    focused: bool | None = None
    gone: bool = False

    def noted(self, activity: Activity) -> Signals:
        """Return these signals after one more activity."""
        return replace(self, **({"gone": False} | _CHANGES[activity]))


_CHANGES: Final[dict[Activity, dict[str, bool]]] = {
    "busy": {},
    "expected": {"used": True},
    "in_use": {},
    "idle": {"used": False},
    "focused": {"focused": True},
    "blurred": {"focused": False},
    "gone": {"used": False, "focused": False, "gone": True},
}

QUIET: Final = Signals()


def claim_of(state: SessionState, *, held: bool, signals: Signals = QUIET) -> Claim:
    """Return the claim of a session in `state`; `held`: some kernel has it open."""
    if state == "running":
        return Claim.RUNNING
    if not held or signals.gone:
        return Claim.DETACHED
    if signals.used:
        return Claim.STEPPING
    return Claim.PAUSED if state == "paused" else Claim.IDLE
