"""The cache that a layer sees while many lines run it together: one base line's rows, then each line's own. And the
comparison of rows computed among others with those computed alone.

Lines that share a base differ from it only from position `start` on. The base's keys and values below are read where
they lie; attention gets them joined to each line's own rows for the time of one layer, and nothing is kept a line.

Shapes: B lines, H key-value heads, S positions of the base line, n rows of a line, D features of a head."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor
from transformers import Cache, DynamicCache, PreTrainedConfig, cache_utils

from djinn_jupyter.engine.model.hooks.gates import Leave
from djinn_jupyter.engine.passes.forward import Forward
from djinn_jupyter.engine.system.device import to_home
from djinn_jupyter.wire.sites import Site

# The errors of a family that cannot run several sequences.
REFUSALS: Final = (AssertionError, AttributeError, LookupError, RuntimeError, TypeError, ValueError)
_ROUNDING: Final = {torch.float32: 1e-3, torch.float64: 1e-6}  # of a row's norm; other shapes sum in another order
_OF_LOGITS: Final = {torch.float32: 1e-4, torch.float64: 1e-6}  # some 800 steps of float32
_COARSE: Final = 5e-2


def rounding_of(dtype: torch.dtype, layers: int) -> float:
    """Return the relative tolerance of a logit in a batch: in a coarse dtype half a step for each of some eight
    roundings a layer, added as independent errors, and at least two steps of both logits of a difference. Measured on a
    CPU, at 12 layers: 2 steps in float16, none in bfloat16; at 8 layers 2 in float32."""
    if dtype in _OF_LOGITS:
        return _OF_LOGITS[dtype]
    step = torch.finfo(dtype).eps
    return min(_COARSE, max(4.0, math.sqrt(8 * layers) / 2) * step)


def equal_but_for_rounding(some: Tensor, others: Tensor, computed_in: torch.dtype) -> bool:
    """Return whether each row [n, ...] of both is equal within the rounding of the dtype of its computation, or of its
    present one if that is coarser. The same infinity or NaN in both is equal."""
    most = max(_ROUNDING.get(computed_in, _COARSE), _ROUNDING.get(some.dtype, _COARSE))
    a, b = some.flatten(1).to(torch.float32), to_home(others, some.device).flatten(1).to(torch.float32)
    finite = torch.where(b.isfinite(), b, 0.0)
    apart = difference(a, b)
    return bool(apart.isfinite().all() and (apart.norm(dim=1) <= most * finite.norm(dim=1)).all())


def difference(one: Tensor, other: Tensor) -> Tensor:
    """Return one - other, 0 where both are the same infinity or NaN, and infinity where only one is finite."""
    same = (one == other) | (one.isnan() & other.isnan())
    return torch.where(same, 0.0, one - other).nan_to_num(nan=torch.inf, posinf=torch.inf, neginf=torch.inf)


KeyValues = tuple[Tensor, Tensor]
SERVED = (cache_utils.DynamicLayer, cache_utils.DynamicSlidingWindowLayer)


@dataclass(slots=True)
class BaseRows:
    """The keys and values of the base line, k_1HSD and v_1HSD by cache layer."""

    of_layer: dict[int, KeyValues]

    @property
    def nbytes(self) -> int:
        return sum(rows.nbytes for pair in self.of_layer.values() for rows in pair)


class MaskedLayer(cache_utils.CacheLayerMixin):
    """A layer whose window is kept by the masks, which the model makes from `get_seq_length`."""

    def __init__(self, index: int, sliding: bool) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.index, self.is_sliding, self.is_initialized = index, sliding, True

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.get_seq_length() + query_length, 0

    def get_max_length(self) -> int:
        return -1

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None: ...


def slides(config: PreTrainedConfig) -> list[bool]:
    """Return for each layer of a model's cache whether it has a window."""
    return [type(one) is cache_utils.DynamicSlidingWindowLayer for one in DynamicCache(config=config).layers]


class SharedLayer(MaskedLayer):
    """One layer of a SharedCache."""

    def __init__(self, index: int, base: BaseRows, start: int, sliding: bool) -> None:
        super().__init__(index, sliding)
        self.base, self.start = base, start
        self.before: KeyValues | None = None  # B lines' own rows from the base's `until` on, before those of this call
        self.until = start
        self.catching = False
        self.caught: KeyValues | None = None

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> KeyValues:
        """Return the rows that attention reads, those of the base first. Leaves the pass where it is `catching`."""
        if self.catching:
            self.caught = key_states, value_states
            raise Leave
        parts = [] if self.before is None else [self.before]
        return self._joined([*parts, (key_states, value_states)])

    @contextmanager
    def leaving(self) -> Iterator[None]:
        """Leave the pass at this layer's update inside this block; `caught` then has the rows that it gave."""
        self.catching, self.caught = True, None
        try:
            yield
        finally:
            self.catching = False

    @contextmanager
    def following(self, before: KeyValues, until: int) -> Iterator[None]:
        """Put the lines' own rows `before` those of the calls inside this block; the base ends at `until`."""
        self.before, self.until = before, until
        try:
            yield
        finally:
            self.before, self.until = None, self.start

    def take(self) -> KeyValues:
        """Return the keys and values caught, once."""
        caught, self.caught = self.caught, None
        if caught is None:
            raise RuntimeError(f"layer {self.index} did not update its cache")
        return caught

    def _joined(self, own: Sequence[KeyValues]) -> KeyValues:
        lines = own[-1][0].shape[0]
        if self.until:
            home = own[-1][0].device  # a layer of another device may read what this one made
            base = [
                to_home(rows[:, :, : self.until], home).expand(lines, -1, -1, -1)
                for rows in self.base.of_layer[self.index]
            ]
            own = [(base[0], base[1]), *own]
        if len(own) == 1:
            return own[0]
        return torch.cat([keys for keys, _ in own], 2), torch.cat([values for _, values in own], 2)

    def get_seq_length(self) -> int:
        return self.start


class SharedCache(Cache):
    """The cache of all lines whose own rows begin at `start`."""

    def __init__(self, config: PreTrainedConfig, base: BaseRows, start: int) -> None:
        self.start = start
        super().__init__(
            layers=[SharedLayer(index, base, start, sliding) for index, sliding in enumerate(slides(config))]
        )

    def layer(self, index: int) -> SharedLayer:
        layer = self.layers[index]
        assert isinstance(layer, SharedLayer)
        return layer


def why_not_batched(forward: Forward) -> str | None:
    """Return why several lines cannot run this model's layers together, from the first to the last; None where only a
    test can show it."""
    return "its residual has several streams" if has_streams(forward) else why_not_joined(forward)


def why_not_joined(forward: Forward) -> str | None:
    """Return why lines cannot join a pass at any layer; None where only a test can show it."""
    anatomy = forward.anatomy
    if forward.geometry.has_states:
        return "its layers keep recurrent states"
    if anatomy.handed:
        return "its layers pass on more than the hidden state"
    numbers = [anatomy.cache_layers_of(layer) for layer in range(forward.layers)]
    if not all(own or anatomy.mappings for own in numbers):
        return "not each of its layers has a layer of the cache"
    plain = DynamicCache(config=forward.model.config).layers
    held = [plain[number] for own in numbers for number in own]
    strange = {type(layer).__name__ for layer in held if type(layer) not in SERVED}
    return f"its cache has layers of kind {', '.join(sorted(strange))}" if strange else None


def has_streams(forward: Forward) -> bool:
    return forward.anatomy.resolve(Site(point="resid_pre", layer=0)).axes != "T D"
