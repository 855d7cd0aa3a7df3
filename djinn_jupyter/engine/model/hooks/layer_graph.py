"""One decoder layer over one token as two graphs: up to the cache's update, and from the end of its attention on.

Between the two the cache takes the new row, and attention runs as it does without graphs, over as many rows as there
are: the same kernels for the same shapes, so the same bits. Knows no pass and no session.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NoReturn

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import Cache

from djinn_jupyter.engine.model.hooks.attention import SDPA
from djinn_jupyter.engine.model.hooks.call_forms import Arguments
from djinn_jupyter.engine.system.cuda_graphs import Graph, GraphRecorder
from djinn_jupyter.engine.system.nested import tensors_within

LayerFunction = Callable[..., Any]


class NotRecordable(Exception):
    """This layer cannot be two graphs. The message says why, with the layer as its subject."""


class Inputs:
    """Fixed copies of what layers are given: the hidden state, and the rest, which layers of one form share. `load`
    copies the rest only where it is not what was loaded before, so `forget` must be called between passes."""

    def __init__(self, hidden: Tensor, rest: Arguments) -> None:
        self.hidden = hidden.clone()
        self._tensors = [tensor.clone() for tensor in tensors_within(rest)]
        self._form = _form(rest)
        self._loaded: tuple[Any, ...] = ()

    def forget(self) -> None:
        self._loaded = ()

    def load(self, hidden: Tensor, rest: Arguments) -> bool:
        """Copy what a layer is given. False, with nothing copied, where it has another form."""
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
        """Return the same arguments with the fixed copies in the place of the tensors."""
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
        """True where a weight lies elsewhere than the graphs read it, as after a sleep."""
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
    """Call `update` in the place of the cache's, within this block."""
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
    """Record a layer, `given` fixed arguments; its attention reads `rows`. Writes to no cache. Raises NotRecordable."""
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
        """Record within this block. NotRecordable where it does not have one update and then one attention."""
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
        except RuntimeError:  # a record that failed has no end either
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
    """While entered, refuses every computation: what a layer computes between the two graphs would be lost."""

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
    """Return all that must be the same in calls that graphs replay: everything but the tensors' contents."""
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
