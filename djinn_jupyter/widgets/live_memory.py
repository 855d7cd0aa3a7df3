"""The live memory chart: a canvas in the browser that draws the data it is sent, and a button that ends it.

Knows no engine and no thread. This module imports ipywidgets, so import it only when a chart is drawn.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import anywidget
import traitlets

from djinn_jupyter.api.memory_trace import MemoryTrace
from djinn_jupyter.widgets.charts import course_of
from djinn_jupyter.widgets.memory import memory_view


class MemoryWidget(anywidget.AnyWidget):
    """The chart's widget. `frozen` is called when the button is pressed; it must return at once."""

    _esm = Path(__file__).with_name("memory.js")
    title = traitlets.Unicode().tag(sync=True)
    course = traitlets.Dict().tag(sync=True)
    said = traitlets.Unicode().tag(sync=True)
    standing = traitlets.Unicode("live").tag(sync=True)

    def __init__(self, model: str, frozen: Callable[[], None]) -> None:
        super().__init__(title=f"Memory of {model}")
        self._engine_name = model
        self.on_msg(lambda widget, content, buffers: frozen() if content == {"press": "freeze"} else None)

    def show(self, trace: MemoryTrace, standing: str = "live") -> None:
        """Draw the present trace: text and course in one message, which halves the browser's work."""
        readings, moves = list(trace.readings), list(trace.moves)
        with self.hold_sync():
            self.standing = standing
            self.said = memory_view(self._engine_name, readings[-1:], ()).plain
            self.course = course_of(readings, moves).message()

    def __repr__(self) -> str:
        """Return the text for pages that cannot draw the widget; every version of ipywidgets shows it."""
        return f"{self.title}, live"
