"""One token sequence through the layers, forward and then backward, a layer at a time: between two layers other jobs
may run.

Each layer has a graph of its own, from its entry to its output. It is kept until the way back, or recomputed there
where memory is short. Nothing of the engine's inference mode gets into a graph.

Shapes: 1 sequence, S positions, D features; V tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from time import monotonic
from typing import Any, Final, Protocol

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge, get_gradient_edge

from djinn_jupyter.engine.model.hooks.gates import Arguments
from djinn_jupyter.engine.model.hooks.taps import Tap, catch
from djinn_jupyter.engine.passes.forward import Forward
from djinn_jupyter.engine.passes.shared_cache import BaseRows, SharedCache
from djinn_jupyter.engine.session.runtime import OtherJobs
from djinn_jupyter.engine.system.arrays import tensors_within
from djinn_jupyter.errors import UsageError

Meet = Callable[[Tap, Tensor], None]
"""Called with a tap and the raw value there, without a graph, as a line first goes forward."""


@dataclass(frozen=True, slots=True)
class GradientStream:
    """A gradient on its way back, of the metric with this number; it bypasses the layer `without`, if given."""

    metric: int
    without: int | None = None


class Gradients(Protocol):
    """Takes the gradients of each stream at each tap."""

    def take(self, stream: GradientStream, tap: Tap, raw_gradient: Tensor) -> None: ...


Flowing = dict[GradientStream, Tensor]
SLICE_SECONDS: Final = 0.05  # of layers, between two progress reports


@contextmanager
def recording(on: bool) -> Iterator[None]:
    """Compute ordinary tensors in this block, with their graph if `on`."""
    with torch.inference_mode(False), torch.set_grad_enabled(on):
        yield


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LayerArguments:
    """The `entry` [1, S, D] of the first layer, and the other arguments of each layer."""

    entry_1SD: Tensor
    of_layer: Sequence[Arguments]

    @classmethod
    def of(cls, forward: Forward, tokens: tuple[int, ...]) -> LayerArguments:
        """Make the arguments of a sequence by the model's own forward; no layer runs. They are ordinary tensors."""
        cache = SharedCache(forward.model.config, BaseRows({}), 0)
        found = forward.layer_arguments(tokens, 0, cache, lines=1)
        copies: dict[int, Tensor] = {}
        with recording(False):
            ordinary = [_ordinary(given, copies) for given in found]
        return cls(entry_1SD=forward.anatomy.forms[0].take(*ordinary[0]), of_layer=ordinary)

    def tensors(self) -> Iterator[Tensor]:
        """Yield every tensor among them."""
        yield from tensors_within(self.of_layer)


def _ordinary(value: Any, copies: dict[int, Tensor]) -> Any:
    """Return the same arguments with a copy of each tensor; shared ones stay shared."""
    if isinstance(value, Tensor):
        if id(value) not in copies:
            copies[id(value)] = value.clone()
        return copies[id(value)]
    if isinstance(value, dict):
        return {key: _ordinary(part, copies) for key, part in value.items()}
    if type(value) in (tuple, list):
        return type(value)(_ordinary(part, copies) for part in value)
    return value


@dataclass(slots=True, kw_only=True, eq=False)
class GradedLayer:
    """A layer that ran from its `entry`; with a graph, also its output and the edges at its taps."""

    entry_1SD: Tensor
    after_1SD: Tensor | None = None
    edges: list[tuple[Tap, GradientEdge]] | None = None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _End:
    """The hidden state after the last layer, and the logits with their graph, which begins at the last row."""

    hidden_1SD: Tensor
    edge: GradientEdge
    logits_V: Tensor


class GradedLine:
    """A sequence on its way through the layers, with the tensors at `taps`."""

    def __init__(self, forward: Forward, arguments: LayerArguments, taps: Iterable[Tap]) -> None:
        self.forward, self.arguments = forward, arguments
        self._within: dict[int, list[Tap]] = {}
        self._between: dict[int, list[Tap]] = {}
        for tap in taps:
            where, key = (self._within, tap.stage) if tap.boundary is None else (self._between, tap.boundary)
            where.setdefault(key, []).append(tap)
        self._runs: list[GradedLayer] = []
        self._end: _End | None = None

    def onward(
        self, meet: Meet | None = None, *, entry_1SD: Tensor | None = None, graphs: bool = False, keep: bool = True
    ) -> Generator[None, None, Tensor]:
        """Run every layer, a step each, from another `entry` if given. Return the hidden state after the last [1, S,
        D]. With `graphs` the way back is open afterwards, and every layer's graph is kept or, without `keep`,
        recomputed on that way."""
        hidden = self.arguments.entry_1SD if entry_1SD is None else entry_1SD
        self._runs = []
        for layer in range(self.forward.layers):
            self._meet_between(layer, hidden, meet)
            ran = self.run(layer, hidden, meet, graph=graphs and keep)
            assert ran.after_1SD is not None
            hidden = ran.after_1SD.detach()
            if graphs:
                self._runs.append(ran if keep else GradedLayer(entry_1SD=ran.entry_1SD))
            yield
        self._meet_between(self.forward.layers, hidden, meet)
        return hidden

    def run(self, layer: int, hidden_1SD: Tensor, meet: Meet | None, *, graph: bool) -> GradedLayer:
        """Run one layer, with its graph if requested."""
        edges: list[tuple[Tap, GradientEdge]] = []

        def met(tap: Tap, raw: Tensor) -> None:
            if meet is not None:
                meet(tap, raw.detach())
            if graph and raw.requires_grad:
                edges.append((tap, get_gradient_edge(raw)))

        form = self.forward.anatomy.forms[layer]
        with recording(graph):
            entry = hidden_1SD.detach().requires_grad_(graph)
            args, kwargs = form.put(*self.arguments.of_layer[layer], entry.clone())
            with self.forward.calling(), catch(self._within.get(layer, ()), met):
                after = form.unwrap(self.forward.anatomy.layers[layer](*args, **kwargs))
        if graph and not after.requires_grad:
            raise UsageError(f"No gradient goes through layer {layer} of this model: it computes without a graph.")
        return GradedLayer(entry_1SD=entry, after_1SD=after, edges=edges)

    def again(self, layer: int, taps: Iterable[Tap], put: Callable[[Tap, Tensor], Tensor | None]) -> None:
        """Run one layer once more from its entry, without a graph. `put` gets the raw value at each tap, and replaces
        it."""
        form = self.forward.anatomy.forms[layer]
        with recording(False):
            args, kwargs = form.put(*self.arguments.of_layer[layer], self._runs[layer].entry_1SD.detach().clone())
            with self.forward.calling(), catch(taps, put):
                self.forward.anatomy.layers[layer](*args, **kwargs)

    def logits(self, end_1SD: Tensor) -> Tensor:
        """Return the logits [V] of the last position, where an open way back begins."""
        if not self._runs:
            return self.forward.lens(end_1SD[0, -1:])[0]
        with recording(True):
            last_1D = end_1SD[0, -1:].detach().requires_grad_(True)
            edge = get_gradient_edge(last_1D)
            logits_V = self.forward.epilogue(last_1D)[0]
        self._end = _End(hidden_1SD=end_1SD, edge=edge, logits_V=logits_V)
        return logits_V.detach()

    def back(
        self, by_logits: Sequence[Tensor], gradients: Gradients, *, dropping: bool = False
    ) -> Generator[None, None, None]:
        """Go back through the layers, a step each, from the derivatives [V] of each metric with respect to the
        `logits`. Pass the gradients at every tap to `gradients`; with `dropping` also those that bypass each layer in
        turn, which differ from there down."""
        assert self._end is not None
        whole, self._end = _before_the_end(self._end, by_logits), None
        flowing = {GradientStream(number): gradient for number, gradient in enumerate(whole)}
        self._take_between(self.forward.layers, flowing, gradients)
        yield
        for layer in reversed(range(self.forward.layers)):
            ran = self._runs.pop()
            if ran.after_1SD is None:
                ran = self.run(layer, ran.entry_1SD, None, graph=True)
            past = {GradientStream(one.metric, layer): flowing[one] for one in flowing if one.without is None}
            flowing = self._through(ran, flowing, gradients) | (past if dropping else {})
            self._take_between(layer, flowing, gradients)
            yield

    def _through(self, ran: GradedLayer, flowing: Flowing, gradients: Gradients) -> Flowing:
        """Return each stream's gradient before a layer, from the one after it."""
        assert ran.after_1SD is not None and ran.edges is not None
        before: Flowing = {}
        with recording(True):
            inputs = [get_gradient_edge(ran.entry_1SD), *(edge for _, edge in ran.edges)]
        for number, (stream, behind) in enumerate(flowing.items()):
            own, *within = _gradients(ran.after_1SD, inputs, behind, number < len(flowing) - 1)
            before[stream] = torch.zeros_like(ran.entry_1SD) if own is None else own
            for (tap, _), found in zip(ran.edges, within, strict=True):
                if found is not None:
                    gradients.take(stream, tap, found)
        return before

    def _meet_between(self, boundary: int, hidden: Tensor, meet: Meet | None) -> None:
        for tap in self._between.get(boundary, ()) if meet is not None else ():
            assert meet is not None
            meet(tap, hidden)

    def _take_between(self, boundary: int, flowing: Flowing, gradients: Gradients) -> None:
        for tap in self._between.get(boundary, ()):
            for stream, found in flowing.items():
                gradients.take(stream, tap, found)


def counted(
    going: Generator[None, None, Tensor | None], count: Callable[[], None], others: OtherJobs
) -> Generator[None, None, Tensor]:
    """Continue along a sequence, and call `count` after each layer. Yield to `others` after a layer if they request it,
    and at the end of a slice: yielding costs a twentieth of a small layer. Return the final hidden state, if any."""
    begun = monotonic()
    while True:
        try:
            next(going)
        except StopIteration as done:
            end: Tensor = done.value
            return end
        count()
        if others.asked() or not others.alone() or monotonic() - begun >= SLICE_SECONDS:
            yield
            begun = monotonic()


def _before_the_end(end: _End, by_logits: Sequence[Tensor]) -> list[Tensor]:
    """Return each metric's gradient [1, S, D] after the last layer: at its last position only."""
    found = []
    for number, by_logits_V in enumerate(by_logits):
        more = number < len(by_logits) - 1
        [of_last_1D] = _gradients(end.logits_V, [end.edge], by_logits_V.to(end.logits_V), more)
        whole = torch.zeros_like(end.hidden_1SD)
        if of_last_1D is not None:
            whole[0, -1:] = of_last_1D
        found.append(whole)
    return found


def _gradients(
    output: Tensor, inputs: Sequence[GradientEdge], by_output: Tensor, again: bool
) -> tuple[Tensor | None, ...]:
    """Return the gradients of some inputs; None of those that the output does not depend on."""
    with recording(True):
        found: tuple[Tensor | None, ...] = torch.autograd.grad(
            output, inputs, by_output, retain_graph=again, allow_unused=True
        )
    return found
