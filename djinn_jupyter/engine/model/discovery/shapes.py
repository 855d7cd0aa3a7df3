"""Find the position and batch axes of a tensor: those whose size changes between probes that differ in them."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from djinn_jupyter.engine.model.discovery.layer_list import Stack
from djinn_jupyter.engine.model.discovery.reads import Border
from djinn_jupyter.engine.model.discovery.recording import (
    LENGTHS,
    PROMPTS,
    Call,
    FunctionCall,
    RecordedTensor,
    Recording,
)
from djinn_jupyter.engine.model.hooks.call_forms import TensorKey
from djinn_jupyter.engine.model.hooks.layout import Heads, PositionLayout

Shape = tuple[int, ...]
LAST_ONLY = "it is computed for the last position only; use logits or the last resid_post"
ALL_POSITIONS = "it is computed anew for all cached positions at every pass, so an edit would not last"
PACKED = "in a decode step heads stand where positions stood in the prompt"
NO_POSITIONS = "it holds no activations with an axis of positions"


class Probes:
    """Four recordings: a prompt of each of LENGTHS, PROMPTS prompts of one token, and a decode step after the first.
    `unread` are the borders of modules at which nothing reads the value."""

    def __init__(self, stack: Stack, recordings: Sequence[Recording], unread: frozenset[Border]) -> None:
        self.stack, self.recordings, self.unread = stack, tuple(recordings), unread
        self.spans = [stack.spans(recording) for recording in recordings]
        self._calls = [self._by_module(index) for index in range(len(self.recordings))]

    def _by_module(self, index: int) -> dict[nn.Module, list[Call]]:
        found: dict[nn.Module, list[Call]] = {}
        for call in self.recordings[index].calls:
            found.setdefault(call.module, []).append(call)
        return found

    def calls(self, module: nn.Module, layer: int | None, probe: int = 0) -> list[Call]:
        """Return the calls of a module in one pass; only those inside `layer`, where it is given."""
        calls = self._calls[probe].get(module, [])
        if layer is None:
            return calls
        span = self.spans[probe][layer]
        return [call for call in calls if call is span or call.inside(span)]

    def shared(self, module: nn.Module, layer: int | None) -> bool:
        """True where the module is also called outside of `layer`."""
        return layer is not None and len(self.calls(module, None)) > len(self.calls(module, layer))

    def stage(self, at: int) -> int | None:
        return self.stack.stage_of(at, self.spans[0])

    def border(self, module: nn.Module, layer: int | None, side: str, key: TensorKey) -> list[Shape] | None:
        """Return the shape at a module's border in each probe, None unless each probe calls the module once."""
        shapes = []
        for probe in range(len(self.recordings)):
            calls = self.calls(module, layer, probe)
            if len(calls) != 1:
                return None
            seen = calls[0].inputs if side == "input" else calls[0].outputs
            if key not in seen:
                return None
            shapes.append(seen[key].shape)  # type: ignore[index]
        return shapes

    def functions(self, module: nn.Module, layer: int, family: str, ordinal: int) -> list[FunctionCall] | None:
        """Return the same call of a torch function inside a module, in each probe; None where one lacks it."""
        found = []
        for probe, recording in enumerate(self.recordings):
            calls = self.calls(module, layer, probe)
            span = calls[0] if len(calls) == 1 else None
            inside = [f for f in recording.functions if span and f.family == family and span.entered < f.at < span.left]
            if ordinal >= len(inside):
                return None
            found.append(inside[ordinal])
        return found

    def stored(self, layer: int) -> list[Shape] | None:
        """Return the shape of the keys that a layer passes to the cache, in each probe; None where one is missing."""
        found: list[RecordedTensor] = []
        for probe, recording in enumerate(self.recordings):
            span = self.spans[probe][layer]
            found += [c.key for c in recording.cache_calls if c.key and span.entered < c.at < span.left]
        return [seen.shape for seen in found] if len(found) == len(self.recordings) else None


def rows_of(shapes: Sequence[Shape], heads: Heads | None = None) -> PositionLayout | str:
    """Return the layout of positions in a tensor that had `shapes` in the four probes, or why there is none."""
    short, long, many, step = shapes
    if not len(short) == len(long) == len(many) == len(step):
        return NO_POSITIONS
    axes = range(len(short))
    positions = [axis for axis in axes if (short[axis], long[axis]) == LENGTHS]
    if len(positions) != 1:
        return LAST_ONLY if short == long and short[:2] == (1, 1) else NO_POSITIONS
    position = positions[0]
    if any(short[axis] != long[axis] for axis in axes if axis != position):
        return NO_POSITIONS
    if step[position] != 1:
        return ALL_POSITIONS if step[position] > LENGTHS[0] else PACKED
    if many[position] == PROMPTS:
        return _unless_bare(PositionLayout(position=position, batch=None, heads=heads), short)
    batch = [axis for axis in axes if axis != position and short[axis] == 1]
    batch.sort(key=lambda axis: many[axis] != PROMPTS)
    return _unless_bare(PositionLayout(position=position, batch=batch[0] if batch else None, heads=heads), short)


def _unless_bare(rows: PositionLayout, shape: Shape) -> PositionLayout | str:
    axes = len(shape) - 1 - (rows.batch is not None)
    return rows if axes in (1, 2) else NO_POSITIONS


def value_shape(rows: PositionLayout, shape: Shape) -> Shape:
    """Return the shape [T, ...] of the value in a tensor of `shape`."""
    if rows.heads is not None:
        return shape[rows.position], rows.heads.heads, rows.heads.features
    rest = [size for axis, size in enumerate(shape) if axis not in (rows.position, rows.batch)]
    return shape[rows.position], *rest
