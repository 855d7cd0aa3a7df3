"""Make taps: find the position and batch axes of a tensor, whose size changes between probes that differ in them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod
from typing import NamedTuple

from torch import nn

from djinn_jupyter.engine.model.discovery.layer_list import Stack
from djinn_jupyter.engine.model.discovery.points import Inner, ModuleTensor
from djinn_jupyter.engine.model.discovery.recording import (
    LENGTHS,
    PROMPTS,
    Border,
    Call,
    FunctionCall,
    RecordedTensor,
    Recording,
)
from djinn_jupyter.engine.model.hooks.gates import TensorKey
from djinn_jupyter.engine.model.hooks.layout import Heads, Layout, Maps, PositionLayout
from djinn_jupyter.engine.model.hooks.taps import Tap, TapKind
from djinn_jupyter.wire.sites import HEAD_POINTS, Site

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


VARIES = "where it is computed depends on the length of the prompt"
UNREAD = "nothing in the model reads it, so a change would have no effect"
RECOMPUTED = (
    "the fused attention shows no maps, so these are recomputed from q and k; a session of eager attention can edit "
    "them (%djinn_use NAME --new --attention eager)"
)


def tap_of(probes: Probes, site: Site, found: ModuleTensor | Inner | str) -> Tap | str:
    """Return the tap of a point inside layer `site.layer`, or the reason why there is none."""
    layer = site.layer
    assert layer is not None
    if isinstance(found, str):
        return found
    if isinstance(found, ModuleTensor):
        tap = border_tap(probes, site, found.module, layer, found.side, found.key, found.heads)
        return tap if isinstance(tap, str) else replace(tap, in_place=found.in_place)
    if found.family == "cache":
        return _key_tap(probes, site, layer, found)
    if site.point == "q_rot":
        return _query_tap(probes, site, layer, found)
    return _map_tap(probes, site, layer, found)


def boundary_tap(site: Site, like: Tap, stage: int) -> Tap:
    return replace(like, site=site, stage=stage)


def border_tap(
    probes: Probes,
    site: Site,
    module: nn.Module,
    layer: int | None,
    side: str,
    key: TensorKey,
    heads: Heads | None = None,
) -> Tap | str:
    """Return the tap on the input or output of a module that is called once (in `layer`, if given), or a reason."""
    shapes = probes.border(module, layer, side, key)
    if shapes is None:
        return VARIES
    rows = rows_of(shapes, heads)
    if isinstance(rows, str):
        return rows
    form = form_of(site, rows, shapes[0])
    call = probes.calls(module, layer)[0]
    stage = probes.stage(call.entered if side == "input" else call.left)
    if stage is None:
        return "it runs between two layers"
    read = (module, side, key) not in probes.unread
    return Tap(
        site=site,
        kind="module_input" if side == "input" else "module_output",
        stage=stage,
        module=module,
        within=_within(probes, module, layer),
        key=key,
        layout=rows,
        **form._asdict(),
        editable=read,
        reason=None if read else UNREAD,
    )


def _within(probes: Probes, module: nn.Module, layer: int | None) -> nn.Module | None:
    return probes.stack.layers[layer] if layer is not None and probes.shared(module, layer) else None


class Form(NamedTuple):
    """The axes of a value, its number of heads (or streams), and the size of its last axis."""

    axes: str
    heads: int | None
    width: int | None


def form_of(site: Site, rows: PositionLayout, shape: Shape) -> Form:
    value = value_shape(rows, shape)
    if len(value) == 2:
        return Form("T D", None, value[1])
    return Form("T H D" if site.point in HEAD_POINTS else "T S D", value[1], value[2])


def _key_tap(probes: Probes, site: Site, layer: int, found: Inner) -> Tap | str:
    shapes = probes.stored(layer)
    rows = NO_POSITIONS if shapes is None else rows_of(shapes)
    if isinstance(rows, str) or shapes is None:
        return str(rows)
    return _inner(probes, site, found, "cache_key", rows, form_of(site, rows, shapes[0]))


def _query_tap(probes: Probes, site: Site, layer: int, found: Inner) -> Tap | str:
    calls = probes.functions(found.module, layer, found.family, found.ordinal)
    if calls is None:
        return VARIES
    shapes = [call.given[0].shape for call in calls]
    rows = rows_of(shapes) if len(shapes[0]) == 4 else _merged(shapes)
    if isinstance(rows, str):
        return rows
    return replace(_inner(probes, site, found, "query", rows, form_of(site, rows, shapes[0])), key=found.family)


def _merged(shapes: list[Shape]) -> PositionLayout | str:
    """Return the layout of [B * H, T, D]: with batch 1 that axis is the heads alone."""
    fits = len(shapes[0]) == 3 and (shapes[0][1], shapes[1][1], shapes[3][1]) == (*LENGTHS, 1)
    return PositionLayout(position=1, batch=None) if fits else NO_POSITIONS


def _inner(probes: Probes, site: Site, found: Inner, kind: TapKind, layout: Layout, form: Form) -> Tap:
    assert site.layer is not None
    return Tap(
        site=site,
        kind=kind,
        stage=site.layer,
        module=found.module,
        within=_within(probes, found.module, site.layer),
        ordinal=found.ordinal,
        layout=layout,
        **form._asdict(),
    )


def _map_tap(probes: Probes, site: Site, layer: int, found: Inner) -> Tap | str:
    calls = probes.functions(found.module, layer, found.family, found.ordinal)
    if calls is None:
        return VARIES
    shapes = [call.given[0].shape if found.family == "sdpa" else call.result.shape for call in calls]
    if (shapes[0][-2], shapes[1][-2], shapes[3][-2]) != (*LENGTHS, 1):
        return NO_POSITIONS
    sinks = shapes[0][-1] - LENGTHS[0]  # columns beside those of the positions
    form = Form("T H K+1" if sinks == 1 else "T H K", prod(shapes[0][:-2]), None)
    if found.family == "sdpa":
        return replace(_inner(probes, site, found, "recomputed", Maps(), form), editable=False, reason=RECOMPUTED)
    return _inner(
        probes, site, found, "softmax_input" if site.point == "attn_scores" else "softmax_output", Maps(), form
    )
