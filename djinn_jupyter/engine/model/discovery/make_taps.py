"""Make taps from places: add the axes that the probes showed, or the reason why a place cannot be tapped."""

from __future__ import annotations

from dataclasses import replace
from math import prod
from typing import NamedTuple

from torch import nn

from djinn_jupyter.engine.model.discovery.point import Inner, ModuleTensor
from djinn_jupyter.engine.model.discovery.recording import LENGTHS
from djinn_jupyter.engine.model.discovery.shapes import (
    NO_POSITIONS,
    Probes,
    Shape,
    rows_of,
    value_shape,
)
from djinn_jupyter.engine.model.hooks.call_forms import TensorKey
from djinn_jupyter.engine.model.hooks.layout import (
    Heads,
    Layout,
    Maps,
    PositionLayout,
)
from djinn_jupyter.engine.model.hooks.taps import Tap, TapKind
from djinn_jupyter.wire.sites import HEAD_POINTS, Site

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
        axes=form.axes,
        heads=form.heads,
        width=form.width,
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
        axes=form.axes,
        heads=form.heads,
        width=form.width,
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
