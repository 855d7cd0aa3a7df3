"""A display that fills while something is computed. Knows nothing of the values it shows."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from djinn_jupyter.magics.screen import Screen
    from djinn_jupyter.widgets.view import View

DRAWN_SECONDS: Final = 0.25


class Redrawn:
    """One display, drawn anew at most once in DRAWN_SECONDS, and its final form in the same place. Where outputs are
    static only the final form is shown. With `at_once` the first drawing waits for nothing."""

    def __init__(self, screen: Screen, *, at_once: bool = True) -> None:
        self._screen = screen
        self._handle: Any = None
        self._drawn = 0.0 if at_once else time.monotonic()

    def draw(self, view: Callable[[], View]) -> None:
        """Show a view, which is made only if it is time."""
        if self._screen.is_static or time.monotonic() - self._drawn < DRAWN_SECONDS:
            return
        self._drawn = time.monotonic()
        if self._handle is None:
            self._handle = self._screen.show_live(view())
        else:
            self._handle.update(view())

    def end(self, view: View) -> None:
        """Show the final form, and its figure below, if it has one."""
        if self._handle is None:
            self._screen.show(view)
            return
        self._handle.update(view.card())
        figure = view.figure()
        if figure is not None:
            self._screen.show_live(figure)
