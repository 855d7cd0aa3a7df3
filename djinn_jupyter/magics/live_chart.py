"""One live chart of memory in a cell: drawn beside all other cells until it is frozen."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any

from djinn_jupyter.widgets import views

if TYPE_CHECKING:
    from djinn_jupyter.api.engine import RemoteEngine
    from djinn_jupyter.api.memory_trace import MemoryTrace
    from djinn_jupyter.magics.screen import Screen
    from djinn_jupyter.widgets.view import View

HERTZ = 4.0  # a browser that draws more falls behind
STILL_SECONDS = 5.0


class LiveChart:
    """One chart in one cell, and below it a view for the saved notebook: no older than STILL_SECONDS, hidden while the
    chart is drawn. It ends by `stop`, by its button, after its seconds or with the engine; the last view stays."""

    def __init__(self, engine: RemoteEngine, screen: Screen, seconds: float | None) -> None:
        from djinn_jupyter.widgets import live_memory

        self._name = engine.description.name
        self._place = self._name if engine.entry is None else engine.entry.place
        self._pressed = threading.Event()
        self._frozen = threading.Event()
        self._shown = threading.Event()
        self._widget: Any = live_memory.MemoryWidget(self._name, self._pressed.set)
        self.trace = engine.memory_trace(hertz=HERTZ, seconds=seconds, heard=self._heard)
        self._handle = screen.show_live(self._widget)
        self._still, self._drawn = screen.show_live(self._view(self.trace)), time.monotonic()
        self._shown.set()

    @property
    def running(self) -> bool:
        return not self._frozen.is_set()

    def stop(self) -> None:
        """Freeze the chart; return when the cell shows its final form."""
        self.trace.stop()

    def _heard(self, trace: MemoryTrace) -> None:
        self._shown.wait()
        if self._pressed.is_set():
            trace.end()
        if trace.running:
            down = self._down(trace)
            self._widget.show(trace, "live" if down is None else f"{down}; waiting")
            if time.monotonic() - self._drawn >= STILL_SECONDS:
                self._drawn = time.monotonic()
                self._still.update(self._view(trace))
        elif not self._frozen.is_set():
            self._frozen.set()
            self._handle.update(views.View(plain="", html=""))
            self._still.update(self._view(trace))
            self._widget.close()

    def _down(self, trace: MemoryTrace) -> str | None:
        """Return the notice while the connection to the engine is down."""
        if trace.down_since is None:
            return None
        return f"the line to {self._place} is down since {time.strftime('%H:%M', time.localtime(trace.down_since))}"

    def _view(self, trace: MemoryTrace) -> View:
        """Return the readings so far as a view."""
        ended = self._down(trace) if trace.error is None else f"ended: {trace.error}"
        return views.memory_view(self._name, trace.readings, trace.moves, ended=ended or now())


def now() -> str:
    """Return the moment of a view's last reading."""
    return time.strftime("at %Y-%m-%d %H:%M:%S")
