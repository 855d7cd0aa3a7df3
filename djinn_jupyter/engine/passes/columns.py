"""Keys and values of many sequences in columns, their device memory, and prompts and next positions of many sequences
in one pass.

Freed memory is kept for the next columns: the first touch of fresh memory takes about as long as attention over it.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Hashable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Final

import torch
from torch import Tensor
from transformers import Cache, PreTrainedConfig

from djinn_jupyter.engine.memory.budget import Budget, Part
from djinn_jupyter.engine.memory.kv.cache import PagedCache
from djinn_jupyter.engine.memory.kv.geometry import CacheGeometry, LayerRun
from djinn_jupyter.engine.memory.kv.slab import uninitialised
from djinn_jupyter.engine.model.hooks.gates import Arguments, Leave
from djinn_jupyter.engine.passes.forward import Forward
from djinn_jupyter.engine.passes.sections import Sections
from djinn_jupyter.engine.passes.shared_cache import MaskedLayer, slides

MOST_KEPT: Final = 2**28  # bytes without a use; more are returned at once
MOST_WASTE: Final = 4  # times the places needed

Pair = tuple[Tensor, Tensor]


class ColumnMemory:
    """Uninitialised memory of every layer for the rows of `places`, sequences times columns."""

    def __init__(self, geometry: CacheGeometry, places: int, device: torch.device) -> None:
        self.geometry, self.places, self.device = geometry, places, device
        self.nbytes = bytes_of(geometry, places)
        self._runs = [[_flat(run, places, group.device or device) for run in group.runs] for group in geometry.groups]

    def runs(self, lines: int, capacity: int) -> list[list[Pair]]:
        """Return keys [n, B, H, C, Dk] and values [n, B, H, C, Dv] of each run of each group, at most as there are
        places."""
        return [
            [_shaped(pair, run, lines, capacity) for run, pair in zip(group.runs, pairs, strict=True)]
            for group, pairs in zip(self.geometry.groups, self._runs, strict=True)
        ]


class KeptMemory:
    """Memory of columns from one part of the budget, and the last that was returned: unused until it is taken again,
    released when anything else needs it."""

    def __init__(self, geometry: CacheGeometry, device: torch.device, budget: Budget) -> None:
        self._geometry, self._device, self._budget = geometry, device, budget
        self._kept: ColumnMemory | None = None
        budget.join(self, Part(name="columns kept", held=self._bytes, idle=self._bytes, release=self.release))

    def take(self, places: int) -> ColumnMemory:
        """Take memory for at least so many places, which then belongs to the caller. Raises SlabFull, or the device's
        error; nothing is taken then."""
        kept, self._kept = self._kept, None
        if kept is not None:
            if places <= kept.places <= MOST_WASTE * places:
                return kept
            self._budget.give_back(kept.nbytes)
            del kept
        size = bytes_of(self._geometry, places)
        self._budget.take(size, by=self)
        try:
            return ColumnMemory(self._geometry, places, self._device)
        except BaseException:
            self._budget.give_back(size)
            raise

    def give_back(self, memory: ColumnMemory) -> None:
        """Keep memory that is no longer used, unless it is large."""
        self.release()
        if memory.nbytes <= MOST_KEPT:
            self._kept = memory
        else:
            self._budget.give_back(memory.nbytes)

    def release(self) -> int:
        """Return the kept memory to the device; return how many bytes these were."""
        size, self._kept = self._bytes(), None
        self._budget.give_back(size)
        return size

    def _bytes(self) -> int:
        return 0 if self._kept is None else self._kept.nbytes


def bytes_of(geometry: CacheGeometry, places: int) -> int:
    """Return the bytes that the rows of so many places take."""
    return places * sum(group.position_bytes for group in geometry.groups)


def _flat(run: LayerRun, places: int, device: torch.device) -> Pair:
    rows = run.layers * run.kv_heads * places
    keys, values = (uninitialised((rows * width,), run.dtype, device) for width in (run.key_dim, run.value_dim))
    return keys, values


def _shaped(pair: Pair, run: LayerRun, lines: int, capacity: int) -> Pair:
    rows = run.layers * lines * run.kv_heads * capacity
    shape = (run.layers, lines, run.kv_heads, capacity)
    keys, values = pair
    return keys[: rows * run.key_dim].view(*shape, run.key_dim), values[: rows * run.value_dim].view(
        *shape, run.value_dim
    )


# The cache that a layer sees while sequences of any lengths run their next positions together: rows in columns. Every
# sequence's rows end at the same column, so that all append theirs from one on; a shorter sequence begins after empty
# columns, which the model's own masks leave out. Sequences without rows, before their prompts, begin in the first
# column. Shapes: B sequences, H key-value heads, C columns, D features of a head, n layers of a run.

ROOM: Final = 64  # columns for new positions, or a quarter of those there if that is more


def capacity_for(lengths: Sequence[int], to_come: int | None = None) -> int:
    """Return the columns for sequences of these lengths, with room for new positions: for those `to_come`, where they
    are fewer. With fewer columns rows are closer together, and attention reads them faster."""
    longest = max(lengths)
    room = max(ROOM, longest // 4)
    return longest + (room if to_come is None else max(1, min(room, to_come)))


class Columns:
    """The keys and values of sequences, in `memory` on the devices of their layers. `end` is the column of the next
    ones. Unused columns are not written: zeros in them, for 32 sequences, take as long as a layer."""

    def __init__(self, memory: ColumnMemory, lengths: Sequence[int], capacity: int) -> None:
        self.memory, self.end, self.capacity = memory, max(lengths), capacity
        self.first = [self.end - length for length in lengths]  # the column of each sequence's first position
        self.runs = memory.runs(len(lengths), capacity)
        self.of_layer: dict[int, Pair] = {
            layer.cache_layer: (keys[slot - run.first], values[slot - run.first])
            for group, pairs in zip(memory.geometry.groups, self.runs, strict=True)
            for run, (keys, values) in zip(group.runs, pairs, strict=True)
            for slot, layer in enumerate(group.layers)
            if run.first <= slot < run.first + run.layers
        }

    def fill(self, caches: Sequence[PagedCache]) -> None:
        """Copy the committed rows of each sequence from its pages."""
        for line, cache in enumerate(caches):
            self.copy(line, cache)

    @property
    def lengths(self) -> list[int]:
        return [self.end - first for first in self.first]

    @property
    def full(self) -> bool:
        return self.end == self.capacity

    def mask(self) -> Tensor | None:
        """Return which columns each sequence has, with the next one, [B, C]; None where all have all."""
        if not any(self.first):
            return None
        device = self.memory.device  # on which the model makes masks
        columns = torch.arange(self.end + 1, device=device)
        return (columns >= torch.tensor(self.first, device=device)[:, None]).to(torch.long)

    def put(self, line: int, cache: PagedCache, count: int = 1) -> None:
        """Append the sequence's newest `count` rows to its cache, whose pages have room for them."""
        new = slice(self.end, self.end + count)
        cache.append([[(k[:, line, :, new], v[:, line, :, new]) for k, v in run] for run in self.runs], count)

    def advance(self) -> None:
        """Count the newest row of each line."""
        self.end += 1

    @contextmanager
    def ending(self, end: int) -> Iterator[None]:
        """Put the next rows at another column inside this block."""
        before, self.end = self.end, end
        try:
            yield
        finally:
            self.end = before

    def copy(self, line: int, cache: PagedCache) -> None:
        """Copy the committed rows of a sequence from its pages. Below them are zeros: masked values are multiplied by
        0, and must not be NaN."""
        cache.drop_working()
        for group, pairs in zip(cache.groups, self.runs, strict=True):
            first = max(group.table.first, group.known_from)
            for rows in (rows for pair in pairs for rows in pair):
                rows[:, line, :, : self.first[line] + first].zero_()
            for piece in group.table.pieces(first, cache.length):
                column = self.first[line] + piece.start
                for number, pair in enumerate(pairs):
                    for paged, rows in zip(group.slab.run_views(piece.page, number), pair, strict=True):
                        rows[:, line].narrow(2, column, piece.count).copy_(paged.narrow(2, piece.row, piece.count))


class ColumnLayer(MaskedLayer):
    """One layer of a ColumnCache."""

    def __init__(self, index: int, columns: Columns, sliding: bool) -> None:
        super().__init__(index, sliding)
        self.columns, self.leaves = columns, False

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> Pair:
        """Write the next rows of every sequence. Return the columns that attention reads, k_BHCD and v_BHCD; where it
        `leaves`, leave the pass instead."""
        keys, values = self.columns.of_layer[self.index]
        end, count = self.columns.end, key_states.shape[2]
        keys.narrow(2, end, count).copy_(key_states)
        values.narrow(2, end, count).copy_(value_states)
        if self.leaves:
            raise Leave
        return keys.narrow(2, 0, end + count), values.narrow(2, 0, end + count)

    def get_seq_length(self) -> int:
        return self.columns.end


class ColumnCache(Cache):
    """The cache of sequences that run their next positions together."""

    def __init__(self, config: PreTrainedConfig, columns: Columns) -> None:
        self.columns = columns
        self._columned = [ColumnLayer(index, columns, sliding) for index, sliding in enumerate(slides(config))]
        super().__init__(layers=list(self._columned))

    @contextmanager
    def leaving(self) -> Iterator[None]:
        """Leave the pass after the next update inside this block."""
        for layer in self._columned:
            layer.leaves = True
        try:
            yield
        finally:
            for layer in self._columned:
                layer.leaves = False


# Prompts of several lengths in one batch: which run together, and how the shorter ones are padded. A causal model's
# rows never see later ones, so prompts are padded at their ends.

ENOUGH: Final = 512  # tokens, beyond which a larger batch saves less than padding costs
NEAR: Final = 0.8


def batches_of(lengths: Sequence[int], most: int, alike: Callable[[int], Hashable]) -> Iterator[list[int]]:
    """Yield the numbers of prompts that run together: sorted by length, with at most `most` tokens including padding,
    and where there are ENOUGH, of similar lengths. Only lengths with the same `alike` are together. Only the request
    decides, so that continued work has the same bits."""
    here: list[int] = []
    for number in sorted(range(len(lengths)), key=lambda number: lengths[number], reverse=True):
        longest = lengths[here[0]] if here else 0
        uneven = longest * len(here) >= ENOUGH and lengths[number] < NEAR * longest
        apart = alike(lengths[number]) != alike(longest)
        if here and (uneven or apart or longest * (len(here) + 1) > most):
            yield here
            here = []
        here.append(number)
    if here:
        yield here


def filled(prompts: Sequence[Sequence[int]]) -> list[list[int]]:
    """Return the prompts padded at their ends to one length, with one of their tokens."""
    length = max(map(len, prompts))
    return [[*tokens, *[tokens[0]] * (length - len(tokens))] for tokens in prompts]


# One position of many sequences in one pass: embedding, masks and positions by the model's own forward, then layer by
# layer, then the model's own epilogue.


@torch.inference_mode()
def next_logits(forward: Forward, columns: Columns, tokens: Sequence[int]) -> Generator[None, None, Tensor]:
    """Return logits [B, V] after one more token of every sequence; its rows are the newest. Yields after layers."""
    cache = ColumnCache(forward.model.config, columns)
    arguments = forward.step_arguments(tokens, columns.lengths, cache, columns.mask())
    anatomy, hidden_B1D = forward.anatomy, None
    for layer, (args, kwargs) in enumerate(arguments):
        form = anatomy.forms[layer]
        if hidden_B1D is not None:
            args, kwargs = form.put(args, kwargs, hidden_B1D)
        with forward.shared(len(tokens)):
            hidden_B1D = form.unwrap(anatomy.layers[layer](*args, **kwargs))
        yield
    assert hidden_B1D is not None
    return forward.shared_lens(hidden_B1D[:, -1])


# The prompts of many sequences in one pass: embedding, masks and positions by the model's own forward, then layer by
# layer, then the model's own epilogue for the last token of each. The last layer reads only the last tokens' rows.
# Where all prompts are of one length, their other rows run there only up to the cache's update, if it has one.


@torch.inference_mode()
def prompt_logits(
    sections: Sections, columns: Columns, prompts: Sequence[Sequence[int]], *, spoilt: int | None = None
) -> Generator[None, None, Tensor]:
    """Return logits [B, V] after every prompt; `columns`, empty before, have their rows as the newest. Yields after a
    section of a layer. The prompt `spoilt` is made NaN, for a trial."""
    forward = sections.forward
    cache = ColumnCache(forward.model.config, columns)
    arguments = forward.batch_arguments(filled(prompts), cache)
    hidden_BTD = forward.anatomy.forms[0].take(*arguments[0])
    if spoilt is not None:
        hidden_BTD = hidden_BTD.clone()
        hidden_BTD[spoilt] = torch.nan
    for layer, given in enumerate(arguments[:-1]):
        hidden_BTD = yield from sections.run(layer, given, hidden_BTD)
        yield
    own = forward.anatomy.cache_layers_of(forward.layers - 1)  # none where it reads the keys of another layer
    if hidden_BTD.shape[1] > 1 and len(set(map(len, prompts))) == 1 and len(own) == 1:
        with forward.shared(hidden_BTD.shape[0] * hidden_BTD.shape[1]):
            _keep_keys_and_values(forward, cache, arguments[-1], hidden_BTD)
        yield
        return forward.shared_lens(_last_rows(forward, cache, prompts, hidden_BTD))
    hidden_BTD = yield from sections.run(forward.layers - 1, arguments[-1], hidden_BTD)
    yield
    last = torch.tensor([len(tokens) - 1 for tokens in prompts], device=hidden_BTD.device)
    return forward.shared_lens(hidden_BTD[torch.arange(len(prompts), device=hidden_BTD.device), last])


def _keep_keys_and_values(forward: Forward, cache: ColumnCache, given: Arguments, hidden_BTD: Tensor) -> None:
    """Run the last layer up to the update of its cache."""
    args, kwargs = forward.anatomy.forms[-1].put(*given, hidden_BTD)
    with suppress(Leave), cache.leaving():
        forward.anatomy.layers[-1](*args, **kwargs)


def _last_rows(forward: Forward, cache: ColumnCache, prompts: Sequence[Sequence[int]], hidden_BTD: Tensor) -> Tensor:
    """Return the last rows [B, D] after the last layer, where prompts of one length have their keys and values."""
    before = len(prompts[0]) - 1
    with cache.columns.ending(before):
        given = forward.step_arguments([tokens[-1] for tokens in prompts], [before] * len(prompts), cache, None)[-1]
        form = forward.anatomy.forms[-1]
        args, kwargs = form.put(*given, hidden_BTD[:, -1:])
        with forward.shared(len(prompts)):
            after_B1D: Tensor = form.unwrap(forward.anatomy.layers[-1](*args, **kwargs))
    return after_B1D[:, -1]
