"""The trial of a model by short lines: can it go backward, and how many bytes does a layer's graph take."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor, nn

from djinn_jupyter.engine.forward.forward import Forward
from djinn_jupyter.engine.model.hooks.taps import Tap
from djinn_jupyter.engine.model.loading.reasons import first_line
from djinn_jupyter.engine.session.runtime import Runtime
from djinn_jupyter.engine.session.steps import Blocked
from djinn_jupyter.engine.system.out_of_memory import out_of_memory
from djinn_jupyter.engine.wavefront.rounding import REFUSALS, equal_but_for_rounding
from djinn_jupyter.engine.wavefront.shared_cache import why_not_batched
from djinn_jupyter.errors import UsageError
from djinn_jupyter.methods.attribution.engine.line import GradedLine, GradientStream, LayerArguments
from djinn_jupyter.methods.common.engine.lines import LinesAlone
from djinn_jupyter.wire.adapters import AdapterIdentity

LENGTHS: Final = (4, 8, 12)
OVER: Final = 1.1  # allocators round up


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphSize:
    """The bytes that the graph of the largest layer keeps, measured at the three `LENGTHS`: at another length they are
    those of the parabola through these, for attention maps grow with its square."""

    measured: tuple[int, int, int]

    def at(self, length: int) -> int:
        """Return the bytes of one layer's graph for a line of `length` tokens."""
        (a, b, c), (low, mid, high) = LENGTHS, self.measured
        slope, next_slope = (mid - low) / (b - a), (high - mid) / (c - b)
        bend = max(0.0, (next_slope - slope) / (c - a))
        return int(OVER * (low + slope * (length - a) + bend * (length - a) * (length - b))) if length > a else low


class Trials:
    """The findings about one model, made when the first attribution asks; other ways of attention, and adapters, have
    their own."""

    def __init__(self) -> None:
        self._found: dict[tuple[str, AdapterIdentity | None], GraphSize | str] = {}

    def size(self, runtime: Runtime, alone: LinesAlone) -> Generator[Blocked | None, None, GraphSize]:
        """Return how large this model's graphs are. Raises UsageError where it cannot go backward."""
        forward = runtime.forward
        way = (forward.attention, None if forward.adapter is None else forward.adapter.identity)
        if way not in self._found:
            self._found[way] = why_no_line(forward) or (yield from _tried(runtime, alone))
        found = self._found[way]
        if isinstance(found, str):
            raise UsageError(f"This model gives no gradients: {found}. Sweep instead.")
        return found


def why_no_line(forward: Forward) -> str | None:
    """Return why a model's layers cannot run one by one and go backward, None where only a trial can tell."""
    if len({forward.home_at(layer) for layer in range(forward.layers + 1)}) > 1:
        return "its layers lie on several devices"
    if forward.weights.streamed:
        return "its weights stream, and are gone from the device by the way back"
    if forward.anatomy.mappings:
        return "its layers pass on more than the hidden state"
    return why_not_batched(forward)


def _tried(runtime: Runtime, alone: LinesAlone) -> Generator[Blocked | None, None, GraphSize | str]:
    sizes: list[int] = []
    tokens: tuple[int, ...] = ()
    forward, generator = runtime.forward, torch.Generator().manual_seed(1)
    line: GradedLine | None = None
    end_1SD = torch.empty(0)
    try:
        for length in LENGTHS:
            tokens = tuple(torch.randint(runtime.description.vocab_size, (length,), generator=generator).tolist())
            line = GradedLine(forward, LayerArguments.of(forward, tokens), ())
            end_1SD, size = yield from _measured(line)
            sizes.append(size)
        assert line is not None
        logits_V = line.logits(end_1SD)
        yield from line.back([torch.ones_like(logits_V)], _Unread())
    except (*REFUSALS, UsageError) as error:
        if isinstance(error, BaseException) and out_of_memory(error):
            raise  # this says nothing of the family
        return f"its layers refuse to ({first_line(error).rstrip('.')})"
    base = yield from alone.run(tokens, (), residuals=False)
    if not equal_but_for_rounding(logits_V[None], base.logits_V[None], end_1SD.dtype):
        return "its layers compute other values by themselves than in its own forward"
    return GraphSize(measured=(sizes[0], sizes[1], sizes[2]))


class _Unread:
    """Takes no gradient: a trial has no taps."""

    def take(self, stream: GradientStream, tap: Tap, raw_gradient: Tensor) -> None:
        raise AssertionError("a line without taps has no gradient to take")


def _measured(line: GradedLine) -> Generator[None, None, tuple[Tensor, int]]:
    """Run a line onward. Return its end, and the bytes that the largest graph of a layer keeps."""
    largest = 0
    going = line.onward(graphs=True)
    while True:
        saved = _KeptBytes(line)
        try:
            with saved.counted():
                next(going)
        except StopIteration as done:
            end: Tensor = done.value
            return end, largest
        largest = max(largest, saved.nbytes)
        yield


class _KeptBytes:
    """Counts the bytes that graphs keep, each storage once, without weights, buffers and the layers' arguments."""

    def __init__(self, line: GradedLine) -> None:
        model: nn.Module = line.forward.model
        others = (*model.parameters(), *model.buffers(), *line.arguments.tensors())
        self._seen = {tensor.untyped_storage().data_ptr() for tensor in others}
        self._held: list[Tensor] = []  # so that no other storage gets the address of one that was counted
        self.nbytes = 0

    def counted(self) -> torch.autograd.graph.saved_tensors_hooks:
        return torch.autograd.graph.saved_tensors_hooks(self._count, lambda tensor: tensor)

    def _count(self, tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in self._seen:
            self._seen.add(storage.data_ptr())
            self._held.append(tensor.detach())
            self.nbytes += storage.nbytes()
        return tensor
