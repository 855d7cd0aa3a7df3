"""Other programs on the device: when they need memory and little is left, sessions are evicted for them.

Each reading of the device leads to one action: first unused memory is given back; where the next reading shows that was
not enough, sessions are evicted; then the memory they left is given back, and so on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from djinn_jupyter.engine.residency.eviction import Eviction
from djinn_jupyter.engine.residency.swapping import Swapping
from djinn_jupyter.engine.session.session import Session
from djinn_jupyter.engine.system.device import Usage

HEADROOM: Final = 20  # a twentieth of the device is to be free when other programs have grown


class ExternalPressure:
    """Only memory that other programs took since the engine's start counts as their need: an engine that was allowed
    nearly all of the device does not evict its sessions for want of headroom."""

    def __init__(self, sessions: Mapping[str, Session], eviction: Eviction, swapping: Swapping, begun: Usage) -> None:
        self._sessions, self._eviction, self._swapping = sessions, eviction, swapping
        self._last = begun
        self._least = begun.other_bytes or 0
        self._gave_back = False

    def heed(self, usage: Usage) -> None:
        """Act on a reading, once."""
        if usage is self._last or usage.other_bytes is None:
            return
        self._last, self._least = usage, min(self._least, usage.other_bytes)
        need = min(_short(usage), usage.other_bytes - self._least)
        if need <= 0:
            self._gave_back = False
        elif self._gave_back:
            self._eviction.clear(need)
            self._gave_back = False
        else:
            self._give_back()

    def _give_back(self) -> None:
        for session in self._sessions.values():
            if session.work is None:
                session.cache.drop_working()
        self._swapping.shrink()
        self._gave_back = True


def _short(usage: Usage) -> int:
    """Return the bytes missing for the headroom; 0 or less where none are."""
    if usage.device_total is None or usage.device_in_use is None:
        return 0
    return usage.device_total // HEADROOM - (usage.device_total - usage.device_in_use)
