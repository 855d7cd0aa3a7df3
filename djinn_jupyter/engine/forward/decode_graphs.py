"""The graphs by which passes over one token run the layers that nothing is armed inside. Knows no session.

A layer is recorded in the first such pass that runs it, and again where its weights have moved. Layers with taps run as
they always do: the bits are the same, so a breakpoint that is set or removed costs no recording. A layer whose graphs
find no memory runs so too, and is recorded some passes later.
"""

from __future__ import annotations

from collections.abc import Iterator, Set
from contextlib import contextmanager
from typing import Any, Final

from torch import Tensor
from transformers import Cache

from djinn_jupyter.engine.memory.kv.states import has_states
from djinn_jupyter.engine.model.discovery.model_map import Anatomy
from djinn_jupyter.engine.model.hooks.call_forms import Arguments, replace_argument
from djinn_jupyter.engine.model.hooks.gates import RunLayer
from djinn_jupyter.engine.model.hooks.layer_graph import (
    Inputs,
    LayerFunction,
    LayerGraph,
    NotRecordable,
    record,
    rows_read,
)
from djinn_jupyter.engine.model.loading.reasons import first_line
from djinn_jupyter.engine.system.cuda_graphs import GraphRecorder
from djinn_jupyter.engine.system.out_of_memory import out_of_memory

PASSES_BETWEEN: Final = 32  # over one token; recording a layer takes about as long as running it twice


class DecodeGraphs:
    """`replayed` counts layers. `plain` are the layers that run without graphs, with the reasons. `postponed` are those
    whose graphs found no memory, with the pass of their next recording.

    Invariant: what a layer returns is never written to again, for frames and watches keep it.
    """

    def __init__(self, anatomy: Anatomy, recorder: GraphRecorder) -> None:
        self._anatomy, self._recorder = anatomy, recorder
        self._graphs: dict[int, LayerGraph] = {}
        self._inputs: list[Inputs] = []
        self.plain: dict[int, str] = {}
        self.postponed: dict[int, int] = {}
        self._passes = 0
        self.replayed = 0
        if anatomy.handed or anatomy.mappings:
            self.plain = dict.fromkeys(range(len(anatomy.layers)), "it hands on more than its hidden state")

    @property
    def recorded(self) -> int:
        return len(self._graphs)

    def count_anew(self) -> None:
        """Count the replays from here on, as after the self-test."""
        self.replayed = 0

    @contextmanager
    def passing(self, cache: Cache, tapped: Set[int]) -> Iterator[RunLayer]:
        """Give the function that runs the layers of one pass over one token; those `tapped` without graphs."""

        self._passes += 1

        def run_layer(index: int, run: LayerFunction, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            if index in tapped or index in self.plain:
                return run(*args, **kwargs)
            return self._run(index, run, (args, kwargs), cache)

        try:
            yield run_layer
        finally:
            for inputs in self._inputs:
                inputs.forget()

    def _run(self, index: int, run: LayerFunction, given: Arguments, cache: Cache) -> Any:
        args, kwargs = given
        form = self._anatomy.forms[index]
        hidden, rest = form.take(args, kwargs), replace_argument(args, kwargs, form.argument, None)
        graph = self._graphs.get(index)
        if graph is None or graph.moved():
            if self._passes < self.postponed.get(index, 0):
                return run(*args, **kwargs)
            return self._recording(index, run, hidden, rest, cache)
        if not graph.inputs.load(hidden, rest):
            return run(*args, **kwargs)
        self.replayed += 1
        return graph.replay(cache)

    def _recording(self, index: int, run: LayerFunction, hidden: Tensor, rest: Arguments, cache: Cache) -> Any:
        """Run a layer without graphs and record it for the passes to come."""
        form = self._anatomy.forms[index]
        output, rows = rows_read(cache, run, form.put(*rest, hidden))
        try:
            if len(rows) != 1:
                raise NotRecordable(f"it updates the cache {len(rows)} times")
            if any(has_states(cache.layers[layer]) for layer in self._anatomy.cache_layers_of(index)):
                raise NotRecordable("it has a recurrent state")
            inputs = self._inputs_for(hidden, rest)
            fixed = form.put(*inputs.in_place_of(rest), inputs.hidden)
            layer = self._anatomy.layers[index]
            self._graphs[index] = record(layer, run, inputs, fixed, cache, rows[0], self._recorder)
            self.postponed.pop(index, None)
        except (NotRecordable, RuntimeError) as why:
            self._graphs.pop(index, None)
            if out_of_memory(why):
                self.postponed[index] = self._passes + PASSES_BETWEEN
            else:
                self.postponed.pop(index, None)
                self.plain[index] = first_line(why).rstrip(".")
        return output

    def _inputs_for(self, hidden: Tensor, rest: Arguments) -> Inputs:
        """Return the inputs of this form, made where there are none."""
        for inputs in self._inputs:
            if inputs.load(hidden, rest):
                return inputs
        self._inputs.append(Inputs(hidden, rest))
        return self._inputs[-1]
