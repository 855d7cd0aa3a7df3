"""The states of a cache layer beside its rows, captured as a value and restored: those of convolutions and recurrences,
and those of a model's own layer class.

They are not idempotent: a layer that runs twice on the same token advances its state twice. A frame therefore keeps the
states of its own layer and all later ones, as of their entry.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Literal, cast

import torch
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel, cache_utils

from djinn_jupyter.engine.memory.kv import own_layers
from djinn_jupyter.engine.memory.kv.own_layers import tensors
from djinn_jupyter.errors import HOOKS, ModelRefused, UsageError
from djinn_jupyter.wire.nouns import CacheGroup

# All attributes of the library's recurrent layer, in its installed version: states, flags, kernel sizes.
_FIELDS = tuple(vars(cache_utils.LinearAttentionLayer()))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, weakref_slot=True)
class LayerState:
    """The states and flags of one layer at one moment, also before its first use. `take` makes it own its tensors."""

    fields: tuple[tuple[str, object], ...]

    def tensors(self) -> Iterator[Tensor]:
        for _, value in self.fields:
            yield from tensors(value)

    @property
    def nbytes(self) -> int:
        return sum(tensor.nbytes for tensor in self.tensors())


class HasFields:
    """A layer of a model's own class; `fields` names its states beside its rows."""

    fields: tuple[str, ...] = ()


def fields_of(layer: object) -> tuple[str, ...]:
    """Return the names of the attributes that a layer holds beside its rows."""
    if isinstance(layer, cache_utils.LinearAttentionCacheLayerMixin):
        return _FIELDS
    return layer.fields if isinstance(layer, HasFields) else ()


def has_states(layer: object) -> bool:
    return bool(fields_of(layer))


def take(layer: object) -> LayerState:
    """Return a copy of the layer's states; the library writes into a layer's tensors in place."""
    return LayerState(fields=tuple((name, _copied(vars(layer)[name])) for name in fields_of(layer)))


def put(layer: object, state: LayerState) -> None:
    """Restore the layer's states from copies of their tensors, so that a state can be put back any number of times."""
    for name, value in state.fields:
        setattr(layer, name, _copied(value))


def put_own(layer: object, state: LayerState) -> None:
    """Give the layer the state's own tensors, without a copy. No other layer may hold them; their bytes may be away."""
    for name, value in state.fields:
        setattr(layer, name, value)


def _copied(value: object) -> object:
    if isinstance(value, Tensor):
        return value.clone()
    if isinstance(value, dict):
        return {key: _copied(item) for key, item in value.items()}
    return value


def nbytes(layer: object) -> int:
    """Return the bytes of the states that a layer holds now."""
    return live(layer).nbytes


def live(layer: object) -> LayerState:
    """Return the layer's own tensors, not copies; the next pass writes them."""
    return LayerState(fields=tuple((name, vars(layer)[name]) for name in fields_of(layer)))


# The contents of one position of a model's cache, layer by layer, and their layout in a page. Read from the tensors of
# a real one-token forward, never from configuration fields. Knows no session and owns no memory.

GroupKind = Literal["full", "window", "index", "positions"]
LayerKind = Literal["full", "window", "index", "positions", "recurrent", "recurrent+full", "recurrent+window", "none"]
CacheArgument = Literal["past_key_values", "cache_params"]

PAGE_BYTES_WANTED = 2 << 20  # at this size and above, plain copies of single pages saturate PCIe
PAGE_POSITIONS_LEAST, PAGE_POSITIONS_MOST = 16, 256
PAGE_ALIGNMENT = 512


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerGeometry:
    """One layer of the cache. `dtype` is the dtype of its keys and values, None without any; `window` is in positions.
    `state_fields` names the library's attributes that hold its states beside rows.

    `device` is the device of its rows, None without any.

    Kind `index`: the keys by which a layer of kind `full` selects the positions it attends to, one head without values.
    Kind `positions`: those keys' positions, one head for each coordinate, where the layer keeps them."""

    cache_layer: int
    kind: LayerKind
    kv_heads: int = 0
    key_dim: int = 0
    value_dim: int = 0
    dtype: torch.dtype | None = None
    window: int | None = None
    state_fields: tuple[str, ...] = ()
    device: torch.device | None = None

    @property
    def position_bytes(self) -> int:
        return self.kv_heads * (self.key_dim + self.value_dim) * (self.dtype.itemsize if self.dtype else 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerRun:
    """Consecutive layers of a group with the same shape, so that one copy moves the rows of all of them.

    In a page they start at byte `offset`: layers x (K[kv_heads, P, key_dim] | V[kv_heads, P, value_dim]).
    `first` is the first layer's slot in the group.
    """

    first: int
    layers: int
    kv_heads: int
    key_dim: int
    value_dim: int
    dtype: torch.dtype
    offset: int

    @property
    def position_bytes(self) -> int:
        return self.layers * self.kv_heads * (self.key_dim + self.value_dim) * self.dtype.itemsize


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupGeometry:
    """Layers that share one page table: a page holds `page_positions` positions of each of them.

    The slot of a layer is its index in `layers`. All of them are on one `device`; None where no tensor showed it.
    """

    kind: GroupKind
    layers: tuple[LayerGeometry, ...]
    window: int | None
    page_positions: int
    page_bytes: int
    runs: tuple[LayerRun, ...]

    @classmethod
    def lay_out(cls, layers: Sequence[LayerGeometry], page_positions: int | None = None) -> GroupGeometry:
        """Lay out the page of these layers, which hold keys and values and have the same window. Raises UsageError
        unless `page_positions` is a power of two."""
        window = layers[0].window
        positions = page_positions or positions_per_page(sum(layer.position_bytes for layer in layers))
        if positions < 1 or positions & (positions - 1):
            raise UsageError(f"A page holds a power of two of positions; {positions} is none. Use 16, 32, ... 256.")
        runs = tuple(_runs(layers, positions))
        used = positions * sum(run.position_bytes for run in runs)
        return cls(
            kind=_group_kind(layers[0]),
            layers=tuple(layers),
            window=window,
            page_positions=positions,
            page_bytes=-(-used // PAGE_ALIGNMENT) * PAGE_ALIGNMENT,
            runs=runs,
        )

    @property
    def position_bytes(self) -> int:
        return sum(run.position_bytes for run in self.runs)

    @property
    def device(self) -> torch.device | None:
        return self.layers[0].device

    def first_needed(self, length: int) -> int:
        """Return the first position that a pass entered at `length` reads."""
        return 0 if self.window is None else max(0, length - self.window + 1)

    def describe(self) -> CacheGroup:
        return CacheGroup(
            kind=self.kind,
            layers=tuple(layer.cache_layer for layer in self.layers),
            window=self.window,
            page_positions=self.page_positions,
            page_bytes=self.page_bytes,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheGeometry:
    """The whole cache of a model, one entry for each layer, in order. Layers of kind `recurrent` and `none` are in no
    group; the keys of indexers and their positions are in separate groups beside those of `layers`."""

    layers: tuple[LayerGeometry, ...]
    groups: tuple[GroupGeometry, ...]
    cache_argument: CacheArgument
    recurrent_state_bytes: int

    @property
    def held(self) -> list[int]:
        """The numbers of the cache's layers that hold something."""
        return [layer.cache_layer for layer in self.layers if layer.kind != "none"]

    @property
    def has_states(self) -> bool:
        """True if sessions have states beside pages."""
        return any(layer.kind.startswith("recurrent") for layer in self.layers)


def positions_per_page(position_bytes: int) -> int:
    """Return the smallest power of two that makes a page of at least 2 MiB, bounded to [16, 256]."""
    positions = PAGE_POSITIONS_LEAST
    while positions < PAGE_POSITIONS_MOST and positions * position_bytes < PAGE_BYTES_WANTED:
        positions *= 2
    return positions


def _group_kind(layer: LayerGeometry) -> GroupKind:
    if layer.kind in ("index", "positions"):
        return layer.kind
    return "full" if layer.window is None else "window"


def _runs(layers: Sequence[LayerGeometry], page_positions: int) -> Iterator[LayerRun]:
    first = offset = 0
    for (heads, key_dim, value_dim, dtype), alike in groupby(
        layers, lambda layer: (layer.kv_heads, layer.key_dim, layer.value_dim, layer.dtype)
    ):
        count = len(list(alike))
        assert dtype is not None, "a layer without keys and values is in no group"
        run = LayerRun(
            first=first, layers=count, kv_heads=heads, key_dim=key_dim, value_dim=value_dim, dtype=dtype, offset=offset
        )
        yield run
        first, offset = first + count, offset + page_positions * run.position_bytes


# Exactly these classes; `own_layers` finds what a subclass holds beside rows. The last of the library's classes was
# added after transformers 5.17.
_KNOWN = {"DynamicLayer", "DynamicSlidingWindowLayer", "DynamicIndexedLayer", "LinearAttentionLayer"}
_KNOWN |= {"LinearAttentionAndFullAttentionLayer", "LinearAttentionAndSlidingWindowAttentionLayer", "DummyLayer"}
KNOWN_LAYERS = tuple(kind for name, kind in vars(cache_utils).items() if name in _KNOWN)


@torch.no_grad()
def probe_geometry(model: PreTrainedModel, device: torch.device, page_positions: int | None = None) -> CacheGeometry:
    """Run one token through `model` twice, each time on a new standard cache, and read what each layer then holds.

    Raises ModelRefused, naming the class and the reason, where pages cannot replace the cache.
    """
    argument = cache_argument(model)
    cache = _standard_cache(model)
    own, per_layer = set(vars(cache)), [set(vars(layer)) for layer in cache.layers]
    _forward_one_token(model, _standard_cache(model), argument, device)  # fills lasting caches
    in_modules = _tensors_in_modules(model)
    _forward_one_token(model, cache, argument, device)
    if changed := [name for name, tensor in _tensors_in_modules(model).items() if in_modules.get(name) is not tensor]:
        raise _refused(model, f"it keeps state in its modules: {changed[0]} changed during a forward")
    if gained := set(vars(cache)) - own:
        raise _refused(model, f"it keeps state of its own on the cache: {_list(gained)}")
    for index, (layer, names) in enumerate(zip(cache.layers, per_layer, strict=True)):
        if gained := set(vars(layer)) - names - own_layers.GAINED:
            raise _refused(model, f"it keeps state of its own on cache layer {index}: {_list(gained)}")
    layers = tuple(_read(model, index, layer) for index, layer in enumerate(cache.layers))
    indexes = [found for index, layer in enumerate(cache.layers) for found in _read_index(model, index, layer)]
    if all(layer.kind == "none" for layer in layers):
        raise _refused(model, "it ignored the cache it was given")
    return CacheGeometry(
        layers=layers,
        groups=tuple(GroupGeometry.lay_out(members, page_positions) for members in _members(layers, indexes)),
        cache_argument=argument,
        recurrent_state_bytes=sum(_state_bytes(layer) for layer in cache.layers),
    )


def cache_argument(model: PreTrainedModel) -> CacheArgument:
    """Return the parameter name under which the model's forward takes its cache. Raises ModelRefused without one."""
    parameters = inspect.signature(model.forward).parameters
    if "past_key_values" in parameters:
        return "past_key_values"
    if "cache_params" in parameters:
        return "cache_params"
    raise _refused(model, "its forward takes no cache (neither past_key_values nor cache_params)")


def _standard_cache(model: PreTrainedModel) -> DynamicCache:
    try:
        cache = DynamicCache(config=model.config)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise _refused(model, f"transformers makes no standard cache for it ({error!r})") from error
    for index, layer in enumerate(cache.layers):
        reason = None if type(layer) in KNOWN_LAYERS else own_layers.why_not(layer)
        if reason is not None:
            raise _refused(model, f"its cache layer {index} is a {type(layer).__name__}: {reason}")
        if isinstance(layer, cache_utils.DynamicSlidingWindowLayer) and layer.sliding_window < 2:
            raise _refused(model, f"cache layer {index} has a window of {layer.sliding_window}")
    return cache


def _forward_one_token(
    model: PreTrainedModel, cache: DynamicCache, argument: CacheArgument, device: torch.device
) -> None:
    options: dict[str, Any] = {argument: cache, "use_cache": True}
    if "logits_to_keep" in inspect.signature(model.forward).parameters:
        options["logits_to_keep"] = 1
    token = torch.ones((1, 1), dtype=torch.long, device=device)
    count = len(cache.layers)
    try:
        output = model(token, **options)
    except (AttributeError, LookupError, RuntimeError, TypeError, ValueError) as error:
        of_its_own = "; it wants a cache of its own" if "DynamicCache" in str(error) else ""
        said = str(error).rstrip(".") or type(error).__name__
        raise _refused(model, f"its forward does not run on a standard cache ({said}){of_its_own}") from error
    if output.get(argument) not in (None, cache):
        raise _refused(model, f"it returned a {type(output.get(argument)).__name__} for the cache it was given")
    if len(cache.layers) != count:
        raise _refused(model, f"its cache grew from {count} to {len(cache.layers)} layers")


def _read(model: PreTrainedModel, index: int, layer: Any) -> LayerGeometry:
    own = own_layers.own_fields(layer)
    recurrent = "recurrent" if own or _state_bytes(layer) else ""
    fields = own or fields_of(layer)
    keys, values = layer_rows(layer)
    if keys is None or values is None:
        return LayerGeometry(cache_layer=index, kind="recurrent" if recurrent else "none", state_fields=fields)
    if keys.ndim == 4 and keys.shape[2] > 1:
        before = f"{keys.shape[2]} rows for one token: it puts rows of its own before the text"
        raise _refused(model, f"layer {index} caches {before}")
    if keys.ndim != 4 or keys.shape[:3] != values.shape[:3] or keys.shape[0] != 1 or keys.shape[2] != 1:
        raise _refused(model, f"layer {index} caches {tuple(keys.shape)} and {tuple(values.shape)} for one token")
    if keys.dtype != values.dtype:
        raise _refused(model, f"layer {index} caches keys in {keys.dtype} and values in {values.dtype}")
    windowed = isinstance(layer, cache_utils.DynamicSlidingWindowLayer)
    attention = "window" if windowed else "full"
    return LayerGeometry(
        cache_layer=index,
        kind=cast(LayerKind, f"{recurrent}+{attention}" if recurrent else attention),
        kv_heads=keys.shape[1],
        key_dim=keys.shape[3],
        value_dim=values.shape[3],
        dtype=keys.dtype,
        window=layer.sliding_window if windowed else None,
        state_fields=fields,
        device=keys.device,
    )


def _read_index(model: PreTrainedModel, index: int, layer: Any) -> Iterator[LayerGeometry]:
    """Yield the geometry of the layer's indexer, where it has one: its keys, and the positions that it keeps."""
    if not isinstance(layer, cache_utils.DynamicIndexedLayer):
        return
    keys, positions = layer.indexer_keys, getattr(layer, "indexer_position_ids", None)  # positions since 5.23
    if keys is not None:
        if keys.ndim != 3 or keys.shape[:2] != (1, 1):
            raise _refused(model, f"the indexer of cache layer {index} keeps {tuple(keys.shape)} for one token")
        yield LayerGeometry(
            cache_layer=index, kind="index", kv_heads=1, key_dim=keys.shape[2], dtype=keys.dtype, device=keys.device
        )
    if positions is not None:
        if positions.ndim != 3 or positions.shape[1:] != (1, 1):
            raise _refused(model, f"the indexer of cache layer {index} keeps positions {tuple(positions.shape)}")
        yield LayerGeometry(
            cache_layer=index,
            kind="positions",
            kv_heads=positions.shape[0],
            key_dim=1,
            dtype=positions.dtype,
            device=positions.device,
        )


def layer_rows(layer: Any) -> tuple[torch.Tensor | None, torch.Tensor | None]:
    """Return the keys and values of a library layer, None for both where one is missing."""
    if not isinstance(layer, cache_utils.CacheLayerMixin) or layer.keys is None or layer.values is None:
        return None, None
    return layer.keys, layer.values


def _tensors_in_modules(model: PreTrainedModel) -> dict[str, torch.Tensor]:
    """Return the tensors that modules hold as plain attributes, neither parameters nor buffers, by path."""
    return {
        f"{path}.{name}": value
        for path, module in model.named_modules()
        for name, value in vars(module).items()
        if isinstance(value, torch.Tensor)
    }


def _state_bytes(layer: Any) -> int:
    """Return a layer's bytes of states beside rows. A window layer's size, kept as a tensor, does not count."""
    recurrent = isinstance(layer, cache_utils.LinearAttentionCacheLayerMixin)
    names = ("conv_states", "recurrent_states") if recurrent else own_layers.own_fields(layer)
    return sum(tensor.nbytes for name in names for tensor in own_layers.tensors(vars(layer)[name]))


def _members(layers: Sequence[LayerGeometry], indexes: list[LayerGeometry]) -> list[list[LayerGeometry]]:
    """Return the layers by group: full attention, each window size, the keys of indexers, their positions; those on
    several devices apart, in the order of the devices."""
    attention = [layer for layer in layers if layer.kv_heads]
    windows = sorted({layer.window for layer in attention}, key=lambda window: (window is not None, window or 0))
    groups = [[layer for layer in attention if layer.window == window] for window in windows]
    groups += [[one for one in indexes if one.kind == kind] for kind in ("index", "positions")]
    apart = ([one for one in group if one.device == device] for group in groups for device in _devices(group))
    return [group for group in apart if group]


def _devices(layers: Sequence[LayerGeometry]) -> list[torch.device | None]:
    return list(dict.fromkeys(layer.device for layer in layers))


def _list(names: set[str]) -> str:
    return ", ".join(sorted(names))


def _refused(model: PreTrainedModel, reason: str) -> ModelRefused:
    return ModelRefused.inexact(type(model).__name__, reason, *_wants_more_than_text(model))


def _wants_more_than_text(model: PreTrainedModel) -> tuple[str, ...]:
    """Return the advice for a model whose forward also takes images or sound; empty for others."""
    if not {"pixel_values", "input_features", "flattened_patches"} & set(inspect.signature(model.forward).parameters):
        return ()
    return (f"Djinn gives a model text alone. With images or sound {HOOKS}",)
