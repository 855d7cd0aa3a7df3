"""Other programs on the device: when they need memory and there is little left, sessions make room for them.

A reading of the device comes in, and one thing is done about it: first what nobody uses is given back, and where that
was not enough, sessions leave, the next time what they left is given back, and so on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from djinn_jupyter.engine.residency.eviction import Room
from djinn_jupyter.engine.residency.swapping import Swapping
from djinn_jupyter.engine.system.device import Usage

if TYPE_CHECKING:
    from djinn_jupyter.engine.session.session import Session

HEADROOM: Final = 20  # a twentieth of the device is to be free when others have grown


class Neighbours:
    """Only what others have taken since the engine's start counts as their need: an engine that was allowed nearly all
    of the device does not send its sessions away for want of headroom."""

    def __init__(self, sessions: Mapping[str, Session], room: Room, swapping: Swapping, begun: Usage) -> None:
        self._sessions, self._room, self._swapping = sessions, room, swapping
        self._last = begun
        self._least = begun.other_bytes or 0
        self._gave_back = False

    def heed(self, usage: Usage) -> None:
        """Look at a reading, once."""
        if usage is self._last or usage.other_bytes is None:
            return
        self._last, self._least = usage, min(self._least, usage.other_bytes)
        need = min(_short(usage), usage.other_bytes - self._least)
        if need <= 0:
            self._gave_back = False
        elif self._gave_back:
            self._room.clear(need)
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
    """Bytes that are missing for the headroom."""
    if usage.device_total is None or usage.device_in_use is None:
        return 0
    return usage.device_total // HEADROOM - (usage.device_total - usage.device_in_use)
