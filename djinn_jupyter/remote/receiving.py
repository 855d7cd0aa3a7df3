"""The bar of a large reply that arrives from another machine, in the output of the waiting cell."""

from __future__ import annotations

from typing import TYPE_CHECKING

from djinn_jupyter.magics.screen import Redrawn
from djinn_jupyter.remote.bar import receiving_view

if TYPE_CHECKING:
    from djinn_jupyter.magics.screen import Screen
    from djinn_jupyter.remote.large_messages import SoFar


class ReceivingBar:
    """Drawn once for each reply, and replaced by one line at its end. Where outputs are static nothing is shown,
    because the speed of a connection is not a result."""

    def __init__(self, screen: Screen) -> None:
        self._screen = screen
        self._bar: Redrawn | None = None

    def __call__(self, progress: SoFar, *, over: bool) -> None:
        if self._screen.is_static:
            return
        if self._bar is None:
            self._bar = Redrawn(self._screen)
        if over:
            self._bar.end(receiving_view(progress, over=True))
            self._bar = None
        else:
            self._bar.draw(lambda: receiving_view(progress))
