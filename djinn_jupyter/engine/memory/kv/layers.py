"""The layers of the paged cache as transformers sees them: its own classes, with the rows kept in pages.

Shapes: H key-value heads, q new rows, R rows returned, D features of a head.
"""

from __future__ import annotations

import functools
from typing import Any, NoReturn

import torch
from torch import Tensor
from transformers import cache_utils

from djinn_jupyter.engine.memory.kv.geometry import HasFields, LayerGeometry
from djinn_jupyter.engine.memory.kv.own_layers import own_fields
from djinn_jupyter.engine.memory.kv.pages import LayerRows
from djinn_jupyter.errors import ModelRefused


class PagedRows:
    """Mixin that keeps the rows of a library layer in pages.

    Invariants: `cumulative_length` is what the library's own layer would report at this moment: the committed length at
    entry, plus the rows of this pass once this layer has run. A layer that held nothing in the probe has no rows
    (`rows` is None) and always reports 0, as the library's would; `update` refuses rows for it.
    """

    is_croppable = False
    cumulative_length: int
    is_initialized: bool

    def attach(self, geometry: LayerGeometry, rows: LayerRows | None) -> None:
        self.geometry = geometry
        self.rows = rows
        self.set_length(0)

    def set_length(self, length: int) -> None:
        """Set the layer's length: before an entry the committed length, after a pass the new one."""
        if self.rows is None:
            length = 0
        self.cumulative_length = length
        self.is_initialized = length > 0

    def get_seq_length(self) -> int:
        return self.cumulative_length

    @property
    def keys(self) -> Tensor | None:
        """Keys on the meta device, for model families that test for None. Only `update` returns rows."""
        if not self.is_initialized:
            return None
        shape = 1, self.geometry.kv_heads, self.cumulative_length, self.geometry.key_dim
        return torch.empty(shape, dtype=self.geometry.dtype, device="meta")

    @keys.setter
    def keys(self, given: Tensor | None) -> None:
        """Accept the None that the library's own constructor sets."""
        assert given is None

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Write k_1HqD and v_1HqD at the layer's length. Return k_1HRD and v_1HRD, bit for bit the library's."""
        shape = key_states.shape
        expected = self.geometry
        if (
            self.rows is None
            or shape[0] != 1
            or shape[1] != expected.kv_heads
            or shape[3] != expected.key_dim
            or value_states.shape != (1, expected.kv_heads, shape[2], expected.value_dim)
            or key_states.dtype != expected.dtype
            or value_states.dtype != expected.dtype
        ):
            self._refuse_rows(key_states, value_states)
        start = self.cumulative_length
        read = self.rows.write(key_states, value_states, start)
        self.cumulative_length = start + shape[2]
        self.is_initialized = True
        return read

    def _refuse_rows(self, key_states: Tensor, value_states: Tensor) -> NoReturn:
        keys, values = (f"{tuple(rows.shape)} {rows.dtype}" for rows in (key_states, value_states))
        raise ModelRefused(
            f"Cache layer {self.geometry.cache_layer} was given keys {keys} and values {values}. The one-token probe "
            f"at load had found {self.geometry}, and sessions run at batch 1."
        )

    def _no(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise NotImplementedError("A paged layer is cut, copied and moved by its PagedCache only.")

    crop = reset = reorder_cache = offload = prefetch = _no
    batch_repeat_interleave = batch_select_indices = activate_past_recording = _no


class PagedFullLayer(PagedRows, cache_utils.DynamicLayer): ...


class PagedWindowLayer(PagedRows, cache_utils.DynamicSlidingWindowLayer): ...


class PagedIndexedLayer(PagedRows, cache_utils.DynamicIndexedLayer):
    """A layer with an indexer. The indexer's keys, and their positions where it keeps any, are rows of separate groups,
    each with its own length: a model may ask for them before or after it has updated keys and values."""

    index_length = position_length = 0
    index_rows: LayerRows | None = None
    position_rows: LayerRows | None = None

    def attach_indexer(self, keys: LayerRows | None, positions: LayerRows | None) -> None:
        self.index_rows, self.position_rows = keys, positions

    def set_length(self, length: int) -> None:
        super().set_length(length)
        self.index_length = self.position_length = length

    def update_indexer(self, indexer_key_states: Tensor) -> Tensor:
        """Write i_1qD at the indexer's length. Return i_1RD, bit for bit the library's."""
        if self.index_rows is None or indexer_key_states.shape[0] != 1:
            raise ModelRefused(
                f"The indexer of cache layer {self.geometry.cache_layer} was given keys "
                f"{tuple(indexer_key_states.shape)}: it kept none in the probe at load, or runs in a batch."
            )
        read_11RD = self.index_rows.write_keys(indexer_key_states.unsqueeze(1), self.index_length)
        self.index_length += indexer_key_states.shape[1]
        return read_11RD.squeeze(1)

    @property
    def indexer_position_ids(self) -> Tensor | None:
        """p_C1T: the C coordinates of the positions so far, None before the first."""
        if self.position_rows is None or not self.position_length:
            return None
        return self.position_rows.read_keys(self.position_length).permute(1, 0, 2, 3).squeeze(3)

    @indexer_position_ids.setter
    def indexer_position_ids(self, p_C1T: Tensor | None) -> None:
        """Append the new positions of p_C1T, which holds all; those so far are stored already."""
        if p_C1T is None:
            return  # from the library's own constructor
        if self.position_rows is None or p_C1T.shape[1] != 1:
            raise ModelRefused(
                f"Cache layer {self.geometry.cache_layer} was given positions {tuple(p_C1T.shape)}: it kept none in "
                "the probe at load, or runs in a batch."
            )
        new_1Cq1 = p_C1T[..., self.position_length :].permute(1, 0, 2).unsqueeze(3)
        self.position_rows.write_keys(new_1Cq1, self.position_length)
        self.position_length = p_C1T.shape[2]


# The library's two bases declare `device` and `dtype` differently.
class PagedRecurrentFullLayer(PagedRows, cache_utils.LinearAttentionAndFullAttentionLayer): ...  # type: ignore[misc]


class PagedRecurrentWindowLayer(  # type: ignore[misc]
    PagedRows, cache_utils.LinearAttentionAndSlidingWindowAttentionLayer
): ...


def paged_own(plain: Any) -> PagedRows:
    """Return an unused layer of a model's own class with its rows in pages. It takes over the attributes of `plain`."""
    kind: Any = type(plain)
    made: PagedRows = _paged_kind(kind, own_fields(plain))()
    vars(made).update({name: value for name, value in vars(plain).items() if name != "keys"})
    return made


@functools.cache
def _paged_kind(own: type, fields: tuple[str, ...]) -> type:
    """Make the paged class. It has no `_layer_type`: with one, the library would build later caches from it."""
    namespace = {"_layer_type": None, "fields": fields, "__init__": lambda self: None}
    return type(f"Paged{own.__name__}", (PagedRows, HasFields, own), namespace)
