"""Keys and values of a split model. The pages of sessions hold whole rows, on rank 0, as without a split: swaps, forks,
checkpoints and the journal know nothing of ranks. Every rank has its own heads of the rows that attention reads now:
rank 0 as views, the others as copies that grow with the pass, and are sent again for another session.

Shapes: H key-value heads of the model, h of one rank, q new rows, R rows that attention reads, D features of a head.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import Cache

from djinn_jupyter.engine.memory.kv.layers import PagedRows
from djinn_jupyter.parallel.group import FromLeader, GoOn, RankGroup, ReadRows, TensorForm, as_bytes

LEAST_GROWTH = 256  # positions


@dataclass(frozen=True, slots=True)
class _Dealt:
    """The rows of a cache layer that the other ranks have: [first, end) of `source`."""

    source: weakref.ref[Any]
    first: int
    end: int


class WholeRows:
    """Rank 0's side: the cache stores whole rows, and attention gets this rank's heads of them."""

    def __init__(self, group: RankGroup, tell: Callable[[FromLeader], None]) -> None:
        self._group, self._tell = group, tell
        self._dealt: dict[int, _Dealt] = {}

    @contextmanager
    def of(self, cache: Cache | None) -> Iterator[None]:
        """Make the updates of a cache gather rows, inside this block."""
        if cache is None:
            yield
            return
        vars(cache)["update"] = self._updating(cache, cache.update)
        try:
            yield
        finally:
            vars(cache).pop("update", None)  # a tap on keys may have taken it away

    def _updating(self, cache: Cache, update: Callable[..., tuple[Tensor, Tensor]]) -> Callable[..., Any]:
        def updating(k_1hqD: Tensor, v_1hqD: Tensor, layer: int, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
            start = int(cache.get_seq_length(layer))
            whole = (self._group.gathered(rows, 1, lambda: self._tell(GoOn())) for rows in (k_1hqD, v_1hqD))
            keys, values = update(*whole, layer, *args, **kwargs)
            self._deal(cache, layer, start, start + k_1hqD.shape[2], keys, values)
            return self._group.own(keys, 1), self._group.own(values, 1)

        return updating

    def _deal(self, cache: Cache, layer: int, start: int, end: int, k_1HRD: Tensor, v_1HRD: Tensor) -> None:
        """Send the other ranks the rows before `start` unless they have them."""
        source, first = _source(cache, layer), end - k_1HRD.shape[2]
        had = self._dealt.get(layer)
        has = had is not None and had.source() is source and had.first <= first and start <= had.end
        before = [] if has or first == start else [rows.narrow(2, 0, start - first) for rows in (k_1HRD, v_1HRD)]
        dealt = [[as_bytes(part) for part in self._group.parts(rows, 1)] for rows in before]
        self._tell(ReadRows(first=first, start=start, sent=not has, key_dim=k_1HRD.shape[3], value_dim=v_1HRD.shape[3]))
        for parts in dealt:
            self._group.deal(parts)
        since = had.first if has and had is not None else first
        self._dealt[layer] = _Dealt(weakref.ref(source), since, end)


def _source(cache: Cache, layer: int) -> Any:
    """Return the object whose rows change only by updates while it lives: a working copy, or the library's own layer.
    Where rows are gathered from pages each time, there is none: return an object that no later call finds."""
    held = cache.layers[layer]
    if not isinstance(held, PagedRows):
        return held
    working = None if held.rows is None else held.rows.group.working
    return _Passing() if working is None else working


class _Passing: ...


class RankRows(Cache):
    """The side of the other ranks: a cache that sends its new rows and returns this rank's heads of all rows."""

    def __init__(self, group: RankGroup, expect: Callable[[type[Any]], Any]) -> None:
        super().__init__(layers=[])
        self._group, self._expect = group, expect
        self._copies: dict[int, _Copy] = {}

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Return k_1hRD and v_1hRD: this rank's heads of rank 0's update."""
        for rows_1hqD in (key_states, value_states):
            self._expect(GoOn)
            self._group.give(rows_1hqD)
        rows: ReadRows = self._expect(ReadRows)
        if rows.sent:
            self._copies[layer_idx] = _Copy(rows.first, key_states, value_states)
            if rows.first < rows.start:
                self._copies[layer_idx].write(rows.first, *self._dealt(rows, key_states))
        copy = self._copies[layer_idx]
        copy.write(rows.start, key_states, value_states)
        return copy.read(rows.first, rows.start + key_states.shape[2])

    def _dealt(self, rows: ReadRows, like: Tensor) -> tuple[Tensor, Tensor]:
        count, dtype = rows.start - rows.first, str(like.dtype).removeprefix("torch.")
        shapes = ((1, like.shape[1], count, width) for width in (rows.key_dim, rows.value_dim))
        keys, values = (self._group.take(TensorForm(number=0, shape=shape, dtype=dtype)) for shape in shapes)
        return keys, values


class _Copy:
    """One layer's rows of this rank's heads from `base` on, in memory that grows."""

    def __init__(self, base: int, k_1hqD: Tensor, v_1hqD: Tensor) -> None:
        self.base = base
        self._both = [_empty(k_1hqD, 0), _empty(v_1hqD, 0)]

    def write(self, start: int, k_1hqD: Tensor, v_1hqD: Tensor) -> None:
        row, count = start - self.base, k_1hqD.shape[2]
        for number, rows in enumerate((k_1hqD, v_1hqD)):
            self._grow(number, row + count)
            self._both[number].narrow(2, row, count).copy_(rows)

    def read(self, first: int, end: int) -> tuple[Tensor, Tensor]:
        keys, values = (held.narrow(2, first - self.base, end - first) for held in self._both)
        return keys, values

    def _grow(self, number: int, need: int) -> None:
        held = self._both[number]
        if need > held.shape[2]:
            more = _empty(held, need + max(LEAST_GROWTH, need // 4))
            more.narrow(2, 0, held.shape[2]).copy_(held)
            self._both[number] = more


def _empty(like: Tensor, positions: int) -> Tensor:
    return torch.empty((*like.shape[:2], positions, like.shape[3]), dtype=like.dtype, device=like.device)
