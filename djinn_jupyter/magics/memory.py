"""Memory, live: a chart in the cell that runs beside all other cells, until it is frozen where it stands."""

from __future__ import annotations

import threading
from argparse import Namespace
from typing import TYPE_CHECKING, Any

from IPython.core.magic import magics_class

from djinn_jupyter.errors import UsageError
from djinn_jupyter.magics.lazily import live_memory, views
from djinn_jupyter.magics.parsing import KEEP, Group, option, verb

if TYPE_CHECKING:
    from djinn_jupyter.client.engine import RemoteEngine
    from djinn_jupyter.client.memory_trace import MemoryTrace
    from djinn_jupyter.magics.screen import Screen

HERTZ = 4.0  # a browser draws no more of it without falling behind


class LiveChart:
    """One chart in one cell. It ends by `stop`, by its button, after its seconds or with the engine; then what it had
    to show is put in its place as a view that a saved notebook keeps."""

    def __init__(self, engine: RemoteEngine, screen: Screen, seconds: float | None) -> None:
        self._name = engine.description.name
        self._pressed = threading.Event()
        self._frozen = threading.Event()
        self._shown = threading.Event()
        self._widget: Any = live_memory.MemoryWidget(self._name, self._pressed.set)
        self.trace = engine.memory_trace(hertz=HERTZ, seconds=seconds, heard=self._heard)
        self._handle = screen.show_live(self._widget)
        self._shown.set()

    @property
    def running(self) -> bool:
        return not self._frozen.is_set()

    def stop(self) -> None:
        """Freeze it; returns when the cell shows its final form."""
        self.trace.stop()

    def _heard(self, trace: MemoryTrace) -> None:
        self._shown.wait()
        if self._pressed.is_set():
            trace.end()
        if trace.running:
            self._widget.show(trace)
        elif not self._frozen.is_set():
            self._freeze(trace)

    def _freeze(self, trace: MemoryTrace) -> None:
        ended = None if trace.error is None else f"ended: {trace.error}"
        self._frozen.set()
        self._handle.update(views.memory_view(self._name, trace.readings, trace.moves, ended=ended))
        self._widget.close()


@magics_class
class MemoryMagics(Group):
    @verb(
        option("what", nargs="?", choices=("stop",), help="`stop` freezes the chart that runs"),
        option("--seconds", type=float, metavar="N", help="freeze it by itself after so long"),
        option("--of", metavar="NAME", help="draw the trace in this variable, from engine.memory_trace()"),
        KEEP,
    )
    def djinn_vram(self, args: Namespace) -> None:
        """Memory, live: weights, sessions, what left the device, other programs. `-o NAME` keeps the readings."""
        if args.what is not None:
            self._stop(args)
        elif args.of is not None:
            trace = self.state.value(args.of)
            name = self.state.engine.description.name
            self.state.screen.show(views.memory_view(name, trace.readings, trace.moves))
        elif self.state.screen.is_static:
            self._once(args)
        else:
            self._start(args)

    def _stop(self, args: Namespace) -> None:
        chart = self.state.chart
        if chart is None or not chart.running:
            raise UsageError("No memory chart runs in this notebook; %djinn_vram starts one.")
        chart.stop()
        self.state.keep(args.keep, chart.trace)

    def _once(self, args: Namespace) -> None:
        with self.state.engine.memory_trace() as trace:
            pass
        self.state.keep(args.keep, trace)
        self.state.screen.show(views.memory_view(self.state.engine.description.name, trace.readings[:1], ()))

    def _start(self, args: Namespace) -> None:
        if args.seconds is not None and args.seconds <= 0:
            raise UsageError(f"{args.seconds:g} is no time to draw for; write %djinn_vram --seconds 60.")
        engine = self.state.engine
        self.state.end_chart()
        self.state.chart = LiveChart(engine, self.state.screen, args.seconds)
        self.state.keep(args.keep, self.state.chart.trace)
