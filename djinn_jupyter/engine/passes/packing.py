"""Sequences (lines) with several starts in one call of a layer: their rows are concatenated, and attention runs a start
at a time.

Everything in a layer except attention computes a row from that row. So the layer gets the rows of all lines as if they
were one line's, with its arguments by row laid out likewise. In place of the attention function that transformers looks
up, one of ours calls the model's own for the lines of each start with the arguments that the model made for these. A
call of each layer shows which argument is attention's mask. The caller has to test whether all this is true of a model.

Shapes: B lines of a start, n rows of each, R rows of all lines, H heads, D features.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final

import torch
from torch import Tensor, nn
from transformers import Cache

from djinn_jupyter.engine.model.hooks.gates import Arguments, Leave
from djinn_jupyter.engine.model.loading.reasons import first_line
from djinn_jupyter.engine.passes import sections
from djinn_jupyter.engine.passes.columns import ColumnCache, Columns
from djinn_jupyter.engine.passes.forward import Forward
from djinn_jupyter.engine.passes.shared_cache import REFUSALS, KeyValues, SharedCache
from djinn_jupyter.engine.system.device import out_of_memory

Attention = Callable[..., Any]
TABLE: Final = "ALL_ATTENTION_FUNCTIONS"  # as modeling files of transformers name it
EAGER: Final = "eager_attention_forward"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Portion:
    """Lines of one `start` in a call: the arguments for their rows, the rows, and the lines' own keys and values
    `before` these, between the base's and theirs. Some have values `inside` the layer, by line. `shared` are keys and
    values of the same rows that layers below have passed on."""

    calls: sections.LayerCalls
    start: int
    rows_BnD: Tensor
    inside: Mapping[int, sections.Inside] = field(default_factory=dict)
    before: KeyValues | None = None
    shared: sections.Entries = field(default_factory=dict)

    @property
    def lines(self) -> int:
        return self.rows_BnD.shape[0]

    @property
    def length(self) -> int:
        return self.rows_BnD.shape[1]

    @property
    def rows(self) -> int:
        return self.lines * self.length

    def part(self, first: int, behind: int) -> Portion:
        """Return the lines from `first` on before that number."""
        return replace(
            self,
            rows_BnD=self.rows_BnD[first:behind],
            inside={line - first: one for line, one in self.inside.items() if first <= line < behind},
            before=None if self.before is None else (self.before[0][first:behind], self.before[1][first:behind]),
            shared=sections.each_of(self.shared, lambda rows: rows[first:behind]),
        )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class AfterLayer:
    """The rows [B, n, D] of a portion's lines after a layer, and its keys and values [B, H, n, D] for layers above."""

    rows_BnD: Tensor
    made: sections.Entries = field(default_factory=dict)


class Packing:
    """Packed calls of one model's layers, `in_sections` where these can be left and entered again. `masks` has the path
    of the mask among each layer's arguments, None where attention gets none; `axes` the axes that count rows, for the
    arguments with one; `kept_of_row` the most bytes that calls keep for a row between sections."""

    def __init__(self, forward: Forward, in_sections: bool) -> None:
        self.forward, self.in_sections = forward, in_sections
        self._steps = [tuple(sections.steps_of(layer)) for layer in forward.anatomy.layers]
        self.places = [_places(layer) for layer in forward.anatomy.layers]
        self.masks: list[sections.Path | None] = []
        self.axes: list[dict[sections.Path, int]] = []
        self.shared = sections.SharedKeys(forward, [sections.Handing()] * forward.layers)
        self.kept_of_row = 0

    def learn(self, several: sections.LayerCalls, single: sections.LayerCalls, hidden_1nD: Tensor) -> None:
        """Learn the layers' arguments from those for `several` rows after a start, which are hidden_1nD, and those for
        a `single` row. Each layer is called up to its attention. Raises NotPacked where it cannot be packed."""
        layers = range(self.forward.layers)
        learned = [self._learned(layer, several, hidden_1nD) for layer in layers]
        self.masks = [mask for mask, _ in learned]
        self.shared = sections.SharedKeys(self.forward, [handing for _, handing in learned])
        self.axes = [_row_axes(several.tensors[layer], single.tensors[layer], several.length) for layer in layers]

    def _learned(
        self, layer: int, calls: sections.LayerCalls, hidden_1nD: Tensor
    ) -> tuple[sections.Path | None, sections.Handing]:
        """Return the path of a layer's mask, and the keys and values that it passes on or reads."""
        met: list[tuple[Any, sections.Handing]] = []
        watch = sections.MappingWatch(calls.arguments[layer], self.forward.anatomy.mappings)
        own = bool(self.forward.anatomy.cache_layers_of(layer))

        def note(module: Any, query: Tensor, key: Tensor, value: Tensor, mask: Any, **given: Any) -> Any:
            met.append((mask, watch.seen(layer, (key, value), own)))
            raise Leave

        with suppress(Leave), attention_as(self.places[layer], note):
            calls.call(layer, hidden_1nD)
        if len(met) != 1:
            raise sections.NotPacked(f"layer {layer} does not call the attention function once")
        mask, handing = met[0]
        if mask is None:
            return None, handing
        path = next((path for path, one in calls.tensors[layer].items() if one is mask), None)
        if path is None:
            raise sections.NotPacked(f"layer {layer} makes a mask of its own")
        return path, handing

    def call(self, layer: int, portions: Sequence[Portion]) -> list[AfterLayer]:
        """Return the results of each portion's lines after `layer`."""
        call = _PackedCall(packing=self, layer=layer, portions=portions, cache=_PackedCache(catching=False))
        return call.of_portions(call.run())

    def sections(
        self, layer: int, portions: Sequence[Portion], *, step_by_step: bool = False
    ) -> Iterator[list[AfterLayer] | None]:
        """Yield None after each section of such a call but the last, and then its result. A section has as many weights
        as the layer's largest step, or is a single step."""
        call = _PackedCall(packing=self, layer=layer, portions=portions, cache=_PackedCache(catching=False))
        steps, after = self._steps[layer], None
        most = 0 if step_by_step else max((step.weights for step in steps), default=0)
        cut = sections.SectionedCall(steps, most)
        while after is None:
            with suppress(Leave), cut.entered():
                after = call.run()
            self.kept_of_row = max(self.kept_of_row, math.ceil(cut.nbytes / call.rows))
            yield None if after is None else call.of_portions(after)

    def caught(self, layer: int, portions: Sequence[Portion]) -> list[KeyValues]:
        """Run `layer` up to its cache's update. Return the keys and values [B, H, n, D] of each portion's lines."""
        call = _PackedCall(packing=self, layer=layer, portions=portions, cache=_PackedCache(catching=True))
        with suppress(Leave):
            call.run()
        if call.cache.caught is None:
            raise sections.NotPacked(f"layer {layer} did not update its cache")
        keys, values = call.cache.caught
        return [
            (_of_lines(key, one), _of_lines(value, one))
            for (key, one), (value, _) in zip(_split(keys, 2, portions), _split(values, 2, portions), strict=True)
        ]


class _PackedCache(Cache):
    """Returns the given rows: those below them are joined where attention runs."""

    def __init__(self, catching: bool) -> None:
        super().__init__(layers=[])
        self.catching = catching
        self.caught: KeyValues | None = None

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> KeyValues:
        if self.catching:
            self.caught = key_states, value_states
            raise Leave
        return key_states, value_states


@dataclass(slots=True, kw_only=True, eq=False)
class _PackedCall:
    """One call. `packed` has the path of each argument that is laid out by row, by the tensor's identity."""

    packing: Packing
    layer: int
    portions: Sequence[Portion]
    cache: _PackedCache
    given: Arguments | None = None  # the layer's, laid out once, with the rows
    packed: dict[int, sections.Path] = field(default_factory=dict)
    kept: list[Tensor] = field(default_factory=list)  # so that no identity is given twice
    mappings: dict[str, MutableMapping[Any, Any]] = field(default_factory=dict)  # by argument: what layers share

    @property
    def mask(self) -> sections.Path | None:
        return self.packing.masks[self.layer]

    @property
    def rows(self) -> int:
        return sum(one.rows for one in self.portions)

    def run(self) -> Tensor:
        anatomy = self.packing.forward.anatomy
        form, module = anatomy.forms[self.layer], anatomy.layers[self.layer]
        if self.given is None:
            rows_1RD = torch.cat([one.rows_BnD.flatten(0, 1)[None] for one in self.portions], 1)
            args, kwargs = self._laid_out(self.portions[0].calls.arguments[self.layer], ())
            self.given = form.put(args, kwargs, anatomy.of_lines(rows_1RD))
        args, kwargs = self.given
        with attention_as(self.packing.places[self.layer], self._attend), sections.in_place(self._inside(), self.rows):
            return anatomy.by_line(form.unwrap(module(*args, **kwargs)))

    def _inside(self) -> Iterator[tuple[int, sections.Inside]]:
        """Yield the lines' values inside the layer, with the first of their rows."""
        first = 0
        for one in self.portions:
            for line, inside in one.inside.items():
                yield first + line * one.length, inside.last(one.length)
            first += one.rows

    def _laid_out(self, value: Any, path: sections.Path) -> Any:
        """Return the first portion's arguments with those by row laid out for all; no mask, and our cache."""
        if path and path == self.mask:
            return None
        if path[1:] and path[1] in self.packing.forward.anatomy.mappings:
            return self._handed_on(str(path[1]), value)
        if isinstance(value, Tensor):
            axis = self.packing.axes[self.layer].get(path)
            return value if axis is None else self._by_row(path, axis)
        if isinstance(value, SharedCache):
            return self.cache
        if isinstance(value, dict):
            return {key: self._laid_out(part, (*path, key)) for key, part in value.items()}
        if type(value) in (tuple, list):
            return type(value)(self._laid_out(part, (*path, index)) for index, part in enumerate(value))
        return value

    def _handed_on(self, argument: str, mapping: MutableMapping[Any, Any]) -> MutableMapping[Any, Any]:
        """Return a mapping with the keys and values that this layer reads, for the packed rows."""
        entry = self.packing.shared.read(self.layer)
        read: sections.Entries = {}
        if entry is not None and entry.argument == argument:
            keys, values = zip(*(one.shared[entry] for one in self.portions), strict=True)
            read[entry] = _packed(keys), _packed(values)
        self.mappings[argument] = sections.mapping_like(mapping, read)
        return self.mappings[argument]

    def of_portions(self, after_1RD: Tensor) -> list[AfterLayer]:
        """Return the rows after the layer, and the keys and values that it passed on, for each portion."""
        rows = [part[0].reshape(one.rows_BnD.shape) for part, one in _split(after_1RD, 1, self.portions)]
        made: list[sections.Entries] = [{} for _ in self.portions]
        for entry in self.packing.shared.made(self.layer):
            keys, values = (_split(part, 2, self.portions) for part in self.mappings[entry.argument][entry.key])
            for own, (key, one), (value, _) in zip(made, keys, values, strict=True):
                own[entry] = _of_lines(key, one), _of_lines(value, one)
        return [AfterLayer(rows_BnD=part, made=own) for part, own in zip(rows, made, strict=True)]

    def _by_row(self, path: sections.Path, axis: int) -> Tensor:
        parts = []
        for one in self.portions:
            value = one.calls.tensors[self.layer][path]
            parts.append(value.repeat(*(one.lines if at == axis else 1 for at in range(value.ndim))))
        packed = torch.cat(parts, axis)
        self.packed[id(packed)] = path
        self.kept.append(packed)
        return packed

    def _attend(
        self, module: Any, query: Tensor, key: Tensor, value: Tensor, mask: Any, *, own: Attention, **rest: Any
    ) -> Any:
        """Run the model's `own` attention for the lines of each portion."""
        if mask is not None:
            raise sections.NotPacked(f"layer {self.layer} makes a mask of its own")
        parts = (_split(rows, 2, self.portions) for rows in (query, key, value))
        found = [
            self._attended(one, module, (_of_lines(q, one), _of_lines(k, one), _of_lines(v, one)), own, rest)
            for (q, one), (k, _), (v, _) in zip(*parts, strict=True)
        ]
        return torch.cat(found, 1), None

    def _attended(
        self, one: Portion, module: Any, qkv: tuple[Tensor, Tensor, Tensor], own: Attention, rest: Mapping[str, Any]
    ) -> Tensor:
        view = one.calls.cache.layer(self.packing.shared.cache_layer(self.layer))
        with nullcontext() if one.before is None else view.following(one.before, one.start):
            keys, values = view.update(*qkv[1:])
        mask = None if self.mask is None else one.calls.tensor(self.layer, self.mask, one.lines)
        given = {name: self._given(name, part, one) for name, part in rest.items()}
        after: Tensor = own(module, qkv[0], keys, values, mask, **given)[0]
        return after.reshape(1, one.rows, *after.shape[2:])

    def _given(self, name: str, value: Any, portion: Portion) -> Any:
        """Return an argument of attention in the form for a portion. A parameter has no rows, whatever its length."""
        if not isinstance(value, Tensor) or isinstance(value, nn.Parameter):
            return value
        if id(value) in self.packed:
            return portion.calls.tensor(self.layer, self.packed[id(value)], portion.lines)
        if self.rows in value.shape:
            raise sections.NotPacked(f"attention of layer {self.layer} is given {name!r} by row")
        return value


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FunctionEntry:
    """The place where a layer's modules look up their attention function `own`: a table of transformers, and a key."""

    table: Any
    key: str
    own: Attention
    listed: bool  # False where the modeling file's own function is the default


def _places(layer: Any) -> list[FunctionEntry]:
    found: dict[tuple[int, str], FunctionEntry] = {}
    for file in {type(module).__module__: sys.modules[type(module).__module__] for module in layer.modules()}.values():
        table: Any = getattr(file, TABLE, {})
        for key in _implementations(layer) if table else ():
            own = table.get(key, getattr(file, EAGER, None))
            if own is not None:
                found.setdefault((id(table), key), FunctionEntry(table=table, key=key, own=own, listed=key in table))
    return list(found.values())


@contextmanager
def attention_as(places: Sequence[FunctionEntry], attend: Attention) -> Iterator[None]:
    """Replace the attention function by `attend` inside this block; it gets the original as `own`. Raises NotPacked."""
    if not places:
        raise sections.NotPacked("its layers look up no attention function")
    try:
        for place in places:
            place.table[place.key] = partial(attend, own=place.own)
        yield
    finally:
        for place in places:
            del place.table[place.key]
            if place.listed and place.table.get(place.key) is not place.own:
                place.table[place.key] = place.own  # it was the modeling file's own entry


def _implementations(layer: Any) -> set[str]:
    configs = (getattr(module, "config", None) for module in layer.modules())
    return {str(config._attn_implementation) for config in configs if config is not None}


def _row_axes(
    several: Mapping[sections.Path, Tensor], single: Mapping[sections.Path, Tensor], rows: int
) -> dict[sections.Path, int]:
    """Return the axes that count rows: as long as there are `several`, and 1 for a `single` one."""
    return {
        path: axis
        for path, tensor in several.items()
        if path in single and tensor.ndim == single[path].ndim
        for axis in range(tensor.ndim)
        if (tensor.shape[axis], single[path].shape[axis]) == (rows, 1)
    }


def _split(rows: Tensor, axis: int, portions: Sequence[Portion]) -> list[tuple[Tensor, Portion]]:
    return list(zip(rows.split([one.rows for one in portions], axis), portions, strict=True))


def _of_lines(rows_1HRD: Tensor, portion: Portion) -> Tensor:
    """Return [1, H, B n, D] as [B, H, n, D]."""
    heads, width = rows_1HRD.shape[1], rows_1HRD.shape[3]
    return rows_1HRD[0].reshape(heads, portion.lines, portion.length, width).transpose(0, 1)


def _packed(parts: Sequence[Tensor]) -> Tensor:
    """Return the rows [B, H, n, D] of several portions as [1, H, R, D]."""
    return torch.cat([part.transpose(0, 1).flatten(1, 2) for part in parts], 1)[None]


# Windows of attention where lines run their next positions together: columns keep every row, so the masks have to
# exclude rows outside a window. A family may keep a window only by its cache, which drops rows, under masks that
# include all (Moshi). Short sequences do not show it, because a window has thousands of positions. The masks do, and
# are made without any row.


class _CountedColumns(Columns):
    """Columns without rows, for masks."""

    def __init__(self, end: int) -> None:
        self.end = end


def why_not_in_columns(forward: Forward) -> str | None:
    """Return why the windows of a model's cache would be lost in columns; None where its masks keep them."""
    windows = {layer.cache_layer: layer.window for layer in forward.geometry.layers if layer.window is not None}
    for window in sorted(set(windows.values())):
        try:
            arguments = _behind(forward, window)
        except REFUSALS as error:
            if out_of_memory(error):
                raise
            return f"the masks of its windows cannot be made ({first_line(error)})"
        for layer, given in enumerate(arguments):
            own = any(windows.get(number) == window for number in forward.anatomy.cache_layers_of(layer))
            if own and not _leaves_out_the_first(given, window + 2):
                return "its cache keeps a window that its masks do not"
    return None


def _behind(forward: Forward, window: int) -> Sequence[Arguments]:
    """Return the layers' arguments for one token, with two of the columns before it outside the window."""
    cache = ColumnCache(forward.model.config, _CountedColumns(window + 1))
    return forward.step_arguments([0], [window + 1], cache, None)


def _leaves_out_the_first(arguments: Arguments, columns: int) -> bool:
    """Return whether a mask of so many columns among the arguments treats the first differently from the last."""
    masks = (one for _, one in sections.tensors_by_path(arguments, ()) if one.ndim > 1 and one.shape[-1] == columns)
    return any(not bool((mask[..., 0] == mask[..., -1]).any()) for mask in masks)
