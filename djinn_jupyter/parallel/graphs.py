"""Decoding by CUDA graphs: kernels recorded on a stream of their own, into one pool of memory."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Mapping, Set
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any, Final, NoReturn, Protocol

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import Cache

from djinn_jupyter.engine.memory.kv.geometry import has_states
from djinn_jupyter.engine.memory.weights.residence import Weights
from djinn_jupyter.engine.model.discovery.model_map import Anatomy
from djinn_jupyter.engine.model.hooks.attention import SDPA
from djinn_jupyter.engine.model.hooks.gates import Arguments, RunLayer, replace_argument
from djinn_jupyter.engine.model.loading.reasons import first_line
from djinn_jupyter.engine.system.arrays import tensors_within
from djinn_jupyter.engine.system.config import EngineConfig
from djinn_jupyter.engine.system.device import out_of_memory
from djinn_jupyter.errors import ModelDoesNotFit, ModelRefused, UsageError


class Graph(Protocol):
    """Recorded kernels with their addresses."""

    def replay(self) -> None:
        """Queue the kernels on the current stream."""


class GraphRecorder(Protocol):
    """Records what the calling thread computes between `begin` and `end`, both within a block of `recording`."""

    def recording(self) -> AbstractContextManager[None]: ...

    def begin(self) -> None: ...

    def end(self) -> Graph: ...


class CudaGraphs:
    """The recorder of a GPU. Nothing that is recorded is computed before its replay.

    Graphs share a pool of memory: a tensor that one leaves for another must be kept by a reference, or used before any
    other graph is replayed. Other threads may copy and allocate meanwhile, on streams of their own; a wait for the
    whole device would spoil the record. The garbage collector is off, because it could free a tensor of another stream
    meanwhile.
    """

    def __init__(self, device: torch.device) -> None:
        self._stream = torch.cuda.Stream(device)
        self._pool = torch.cuda.graph_pool_handle()
        self._graph: torch.cuda.CUDAGraph | None = None

    @contextmanager
    def recording(self) -> Iterator[None]:
        computing = torch.cuda.current_stream(self._stream.device)
        self._stream.wait_stream(computing)
        collected = gc.isenabled()
        gc.disable()
        try:
            with torch.cuda.stream(self._stream):
                yield
        finally:
            if collected:
                gc.enable()
            computing.wait_stream(self._stream)

    def begin(self) -> None:
        self._graph = torch.cuda.CUDAGraph()
        self._graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")

    def end(self) -> Graph:
        graph, self._graph = self._graph, None
        assert graph is not None
        graph.capture_end()
        return graph


# One decoder layer over one token as two graphs: up to the cache's update, and from the end of its attention on.
# Between the two the cache takes the new row, and attention runs without graphs over all rows: the same kernels for the
# same shapes, so the same bits. Knows no pass and no session.

LayerFunction = Callable[..., Any]


class NotRecordable(Exception):
    """This layer cannot be two graphs. The message gives the reason, with the layer as its subject."""


class Inputs:
    """Fixed copies of the arguments of layers: the hidden state, and the rest, which layers of one form share. `load`
    copies the rest only where it has changed, so `forget` must be called between passes."""

    def __init__(self, hidden: Tensor, rest: Arguments) -> None:
        self.hidden = hidden.clone()
        self._tensors = [tensor.clone() for tensor in tensors_within(rest)]
        self._form = _form(rest)
        self._loaded: tuple[Any, ...] = ()

    def forget(self) -> None:
        self._loaded = ()

    def load(self, hidden: Tensor, rest: Arguments) -> bool:
        """Copy a layer's arguments. False, with nothing copied, where they have another form."""
        if hidden.shape != self.hidden.shape or hidden.dtype != self.hidden.dtype:
            return False
        objects = (*rest[0], *rest[1].values())
        if len(objects) != len(self._loaded) or any(a is not b for a, b in zip(objects, self._loaded, strict=True)):
            if _form(rest) != self._form:
                return False
            for fixed, new in zip(self._tensors, tensors_within(rest), strict=True):
                fixed.copy_(new)
            self._loaded = objects
        self.hidden.copy_(hidden)
        return True

    def in_place_of(self, rest: Arguments) -> Arguments:
        """Return the same arguments with the tensors replaced by the fixed copies."""
        replaced: Arguments = _with_tensors(rest, iter(self._tensors))
        return replaced


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LayerGraph:
    """Replays a layer. `update` are the arguments of the cache's update, `attend` is the attention over the rows
    that it returns; the tensors in both, `attended` and `output` have fixed addresses: the next replay overwrites
    them."""

    inputs: Inputs
    before: Graph
    update: Arguments
    attend: Callable[[Tensor, Tensor], Tensor]
    attended: Tensor
    after: Graph
    output: Any
    addresses: tuple[tuple[Tensor, int], ...]  # of the layer's weights and buffers

    def moved(self) -> bool:
        """True where a weight has moved since the recording, as after a sleep."""
        return any(tensor.data_ptr() != address for tensor, address in self.addresses)

    def replay(self, cache: Cache) -> Any:
        """Return the layer's outputs for the inputs loaded, in tensors of its own."""
        self.before.replay()
        args, kwargs = self.update
        self.attended.copy_(self.attend(*cache.update(*args, **kwargs)))
        self.after.replay()
        return _with_tensors(self.output, (tensor.clone() for tensor in tensors_within(self.output)))


@contextmanager
def updated_by(cache: Cache, update: LayerFunction) -> Iterator[None]:
    """Call `update` in place of the cache's, within this block."""
    vars(cache)["update"] = update
    try:
        yield
    finally:
        vars(cache).pop("update")


def rows_read(cache: Cache, run: LayerFunction, given: Arguments) -> tuple[Any, list[tuple[Tensor, Tensor]]]:
    """Run a layer. Return its output and the keys and values that the cache's updates returned."""
    read: list[tuple[Tensor, Tensor]] = []
    own = cache.update

    def update(*args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        read.append(own(*args, **kwargs))
        return read[-1]

    args, kwargs = given
    with updated_by(cache, update):
        return run(*args, **kwargs), read


def record(
    layer: nn.Module,
    run: LayerFunction,
    inputs: Inputs,
    given: Arguments,
    cache: Cache,
    rows: tuple[Tensor, Tensor],
    recorder: GraphRecorder,
) -> LayerGraph:
    """Record a layer with these fixed arguments; its attention reads `rows`. Writes to no cache. Raises
    NotRecordable."""
    args, kwargs = given
    cut = _Cut(recorder, rows)
    with recorder.recording(), updated_by(cache, cut.update), cut.split(), cut:
        output = run(*args, **kwargs)
    return LayerGraph(
        inputs=inputs,
        before=cut.graphs[0],
        update=cut.new,
        attend=cut.attend,
        attended=cut.attended,
        after=cut.graphs[1],
        output=output,
        addresses=tuple((tensor, tensor.data_ptr()) for tensor in (*layer.parameters(), *layer.buffers())),
    )


class _Cut(TorchFunctionMode):
    """Ends the first graph where the layer updates the cache, and begins the second where its attention ends."""

    new: Arguments
    attend: Callable[[Tensor, Tensor], Tensor]
    attended: Tensor

    def __init__(self, recorder: GraphRecorder, rows: tuple[Tensor, Tensor]) -> None:
        super().__init__()
        self.graphs: list[Graph] = []
        self._recorder, self._rows = recorder, rows
        self._recording = False
        self._between = _Between()

    @contextmanager
    def split(self) -> Iterator[None]:
        """Record within this block. NotRecordable unless it has one update and then one attention."""
        self._begin()
        try:
            yield
            self._end()
        except BaseException:
            self._between.leave()
            if self._recording:
                self._abandon()
            raise
        if len(self.graphs) != 2:
            raise NotRecordable("it ends without one update of the cache and one fused attention")

    def _begin(self) -> None:
        self._recorder.begin()
        self._recording = True

    def _end(self) -> None:
        self._recording = False
        self.graphs.append(self._recorder.end())

    def _abandon(self) -> None:
        try:
            self._end()
        except RuntimeError:  # a failed record has no end either
            pass

    def update(self, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        if self.graphs:
            raise NotRecordable("it updates the cache twice")
        self._end()
        self.new = args, kwargs
        self._between.enter()
        return self._rows

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func not in SDPA:
            return func(*args, **kwargs)
        self._between.leave()
        if len(self.graphs) != 1 or self._recording:
            raise NotRecordable("its fused attention does not follow the cache's update")
        if len(args) < 3 or args[1] is not self._rows[0] or args[2] is not self._rows[1]:
            raise NotRecordable("its attention does not read the cache's rows as they are")
        query, rest = args[0], args[3:]
        if any(True for _ in tensors_within([rest, kwargs])):
            raise NotRecordable("its attention takes a mask")
        self.attend = lambda keys, values: func(query, keys, values, *rest, **kwargs)
        like = self.attend(*self._rows)
        self.attended = torch.empty_strided(like.size(), like.stride(), dtype=like.dtype, device=like.device)
        self._begin()
        return self.attended


class _Between(TorchDispatchMode):
    """While entered, refuses every computation: it would be lost between the two graphs."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._entered = False

    def enter(self) -> None:
        self._entered = True
        self.__enter__()  # type: ignore[no-untyped-call]

    def leave(self) -> None:
        if self._entered:
            self._entered = False
            self.__exit__(None, None, None)  # type: ignore[no-untyped-call]

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> NoReturn:
        raise NotRecordable(f"it computes between the cache's update and its attention ({func})")


def _form(value: Any) -> Any:
    """Return everything that must be equal in replayed calls: all but the tensors' contents."""
    if isinstance(value, Tensor):
        return value.shape, value.stride(), value.dtype
    if isinstance(value, Mapping):
        return {key: _form(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_form(part) for part in value]
    return Cache if isinstance(value, Cache) else value


def _with_tensors(value: Any, tensors: Iterator[Tensor]) -> Any:
    """Return the same nested value with these tensors, in the order of `tensors_within`."""
    if isinstance(value, Tensor):
        return next(tensors)
    if isinstance(value, Mapping):
        return {key: _with_tensors(part, tensors) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_with_tensors(part, tensors) for part in value)
    return value


# The graphs with which passes over one token run layers without taps. Knows no session. A layer is recorded in the
# first such pass that runs it, and again where its weights have moved. Layers with taps run as usual: the bits are the
# same, so setting or removing a breakpoint costs no recording. A layer whose graphs find no memory also runs as usual,
# and is recorded some passes later.

PASSES_BETWEEN: Final = 32  # over one token; recording a layer takes about as long as running it twice


class DecodeGraphs:
    """`replayed` counts layers. `plain` are the layers that run without graphs, with the reasons. `postponed` are the
    layers whose graphs found no memory, with the pass of their next recording.

    Invariant: a layer's output is never written to again, because frames and watches keep it.
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
        """Reset the count of replays, for example after the self-test."""
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
        """Run a layer without graphs and record it for later passes."""
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
        """Return the inputs of this form, created if needed."""
        for inputs in self._inputs:
            if inputs.load(hidden, rest):
                return inputs
        self._inputs.append(Inputs(hidden, rest))
        return self._inputs[-1]


NO_MEMORY = "no memory for its graphs so far; it is recorded when there is some"
WITHOUT = "load it without --cuda-graphs"


def recorder_on(device: torch.device) -> GraphRecorder:
    """Return the recorder of a GPU. Raises UsageError for another device, before anything is loaded."""
    if device.type != "cuda":
        raise UsageError(f"CUDA graphs need a GPU, and {device} is none: {WITHOUT}.")
    return CudaGraphs(device)


def graphs_for(config: EngineConfig, anatomy: Anatomy, weights: Weights, recorder: GraphRecorder) -> DecodeGraphs:
    """Return the graphs of a model whose weights stay in place. Raises ModelDoesNotFit for others."""
    if weights.streamed:
        raise ModelDoesNotFit(
            f"CUDA graphs keep the addresses of the weights, and layers of {config.model} stream: {WITHOUT}, or allow "
            "more with --device-memory."
        )
    return DecodeGraphs(anatomy, recorder)


def notes_on(graphs: DecodeGraphs | None, name: str) -> tuple[str, ...]:
    """Return notes on the graphs that the self-test recorded. Raises ModelRefused where it recorded none."""
    if graphs is None:
        return ()
    graphs.count_anew()
    reasons = tuple(_reasons(graphs))
    if not graphs.recorded:
        raise ModelRefused(f"No layer of {name} can run by CUDA graphs: {'; '.join(reasons)}. {WITHOUT.capitalize()}.")
    layers = graphs.recorded + len(graphs.plain) + len(graphs.postponed)
    others = f"; not {'; nor '.join(reasons)}" if reasons else ""
    return (f"Decode steps run {graphs.recorded} of {layers} layers by CUDA graphs{others}.",)


def _reasons(graphs: DecodeGraphs) -> Iterator[str]:
    told = {**graphs.plain, **dict.fromkeys(graphs.postponed, NO_MEMORY)}
    for reason in dict.fromkeys(told.values()):
        layers = [str(index) for index, why in told.items() if why == reason]
        shown = ", ".join(layers[:8]) + (f" and {len(layers) - 8} more" if len(layers) > 8 else "")
        yield f"layer{'s' if len(layers) > 1 else ''} {shown} ({reason})"
