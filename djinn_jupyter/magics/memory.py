"""The magic that draws memory: a live chart, one moment, or a trace of the user's."""

from __future__ import annotations

from argparse import Namespace
from typing import TYPE_CHECKING

from IPython.core.magic import magics_class

from djinn_jupyter.api import memory_trace
from djinn_jupyter.errors import UsageError
from djinn_jupyter.magics.live_chart import LiveChart, now
from djinn_jupyter.magics.parsing import KEEP, Group, option, refuse_others, verb
from djinn_jupyter.widgets import views
from djinn_jupyter.wire.texts import in_quotes

if TYPE_CHECKING:
    from djinn_jupyter.api.memory_trace import MemoryTrace


@magics_class
class MemoryMagics(Group):
    @verb(
        option("what", nargs="?", choices=("stop",), help="`stop` freezes the chart that runs"),
        option("--seconds", type=float, metavar="N", help="freeze it by itself after so long"),
        option("--of", metavar="NAME", help="draw the trace in this variable, from engine.memory_trace()"),
        KEEP,
    )
    def djinn_vram(self, args: Namespace) -> None:
        """Memory, live: weights, sessions, other tiers, other programs. `-o NAME` keeps the readings."""
        if args.what is not None:
            refuse_others(args, args.what, "what", "keep")
            self._stop(args)
        elif args.of is not None:
            refuse_others(args, "--of")
            trace = self._trace(args.of)
            name = self.state.engine.description.name
            self.state.screen.show(views.memory_view(name, trace.readings, trace.moves))
        elif self.state.screen.is_static:
            self._once(args)
        else:
            self._start(args)

    def _trace(self, name: str) -> MemoryTrace:
        """Return the trace of a variable."""
        there = self.state.value(name)
        if not isinstance(there, memory_trace.MemoryTrace):
            raise UsageError(f"{in_quotes(name)} is no trace of memory but {type(there).__name__}: keep one with -o.")
        return there

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
        name = self.state.engine.description.name
        self.state.screen.show(views.memory_view(name, trace.readings[:1], (), ended=now()))

    def _start(self, args: Namespace) -> None:
        if args.seconds is not None and args.seconds <= 0:
            raise UsageError(f"{args.seconds:g} is no time to draw for; write %djinn_vram --seconds 60.")
        engine = self.state.engine
        self.state.end_chart()
        self.state.chart = LiveChart(engine, self.state.screen, args.seconds)
        self.state.keep(args.keep, self.state.chart.trace)
