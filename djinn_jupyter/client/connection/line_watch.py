"""Those who show something of an engine, and are told that the line to it is down. Called in the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

DOWN_SECONDS: Final = 2.0  # a line that is back sooner is not worth a word
LineHeard = Callable[["float | None"], None]
"""Called with the moment at which the line was lost, in seconds since the epoch, and with None when it is back."""


class LineWatch:
    def __init__(self) -> None:
        self._watchers: list[LineHeard] = []
        self._waiting: asyncio.TimerHandle | None = None
        self._told: float | None = None

    def add(self, heard: LineHeard) -> None:
        self._watchers.append(heard)
        if self._told is not None:
            heard(self._told)

    def remove(self, heard: LineHeard) -> None:
        if heard in self._watchers:
            self._watchers.remove(heard)

    def lost(self, since: float) -> None:
        """Tell that the line is down if it is not back in DOWN_SECONDS."""
        self._waiting = asyncio.get_running_loop().call_later(DOWN_SECONDS, self._tell, since)

    def back(self) -> None:
        """Tell that the line is back, if its loss was told."""
        self.close()
        if self._told is not None:
            self._tell(None)

    def close(self) -> None:
        """Tell nothing more of a loss that was not told."""
        if self._waiting is not None:
            self._waiting.cancel()

    def _tell(self, since: float | None) -> None:
        self._told = since
        for heard in tuple(self._watchers):
            heard(since)
