"""Slabs and page tables of caches, layers of one's own and states."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import pytest
import torch
from transformers import CONFIG_MAPPING, cache_utils

from djinn_jupyter.engine.memory.budget import Budget
from djinn_jupyter.engine.memory.kv.own_layers import own_fields, why_not
from djinn_jupyter.engine.memory.kv.pages import PageTable
from djinn_jupyter.engine.memory.kv.slab import Slab
from djinn_jupyter.engine.system.faults import InvariantError
from djinn_jupyter.errors import SlabFull
from tests.engine.memory.kv.runs import pair, tokens
from tests.engine.memory.kv.small import CPU, GEOMETRY, read, slab, write


def accounts(subject: Slab) -> object:
    subject.check()
    references = {page: subject.references(page) for page in range(60)}
    return subject.statistics(), references, subject.budget.taken


def test_a_page_is_aligned_and_holds_every_layer():
    assert GEOMETRY.page_bytes % 512 == 0
    assert [run.layers for run in GEOMETRY.runs] == [2, 1]
    assert GEOMETRY.position_bytes == 2 * 2 * 8 * 4 + 10 * 2
    one = slab()
    (page,) = one.allocate(1)
    for layer in GEOMETRY.layers:
        one.key_view(page, layer.cache_layer).fill_(layer.cache_layer + 0.25)
        one.value_view(page, layer.cache_layer).fill_(layer.cache_layer + 0.5)
    for layer in GEOMETRY.layers:
        keys, values = one.key_view(page, layer.cache_layer), one.value_view(page, layer.cache_layer)
        assert keys.shape == (layer.kv_heads, 2, layer.key_dim)
        assert values.shape == (layer.kv_heads, 2, layer.value_dim)
        assert keys.dtype == values.dtype == layer.dtype
        assert keys.eq(layer.cache_layer + 0.25).all()
        assert values.eq(layer.cache_layer + 0.5).all()
        assert keys.data_ptr() >= one.bytes_of(page).data_ptr()


def test_segments_grow_on_demand_up_to_the_limit_and_no_further():
    one = slab(pages=10, segment_pages=4)
    assert one.statistics().pages == 0
    assert one.statistics().bytes_allocated == 0
    held = one.allocate(1)
    assert one.statistics().pages == 4
    held += one.allocate(9)
    assert one.statistics().pages == 10
    assert one.statistics().bytes_allocated == one.budget.taken == 10 * GEOMETRY.page_bytes
    assert len(set(held)) == 10


def test_pages_are_moved_into_as_little_memory_as_has_them_whatever_the_sizes_of_segments():
    one = slab(pages=2, segment_pages=4)
    held = one.allocate(2)  # a segment of two slots, for which the budget sufficed
    one.budget.limit = 10 * GEOMETRY.page_bytes
    held += one.allocate(8)
    for number, page in enumerate(held):
        one.bytes_of(page).fill_(number)
    kept = {page: number for number, page in enumerate(held) if number not in (6, 7, 8)}
    one.free(page for page in held if page not in kept)
    assert one.compact() == 2
    one.shrink()
    assert one.statistics().bytes_allocated == one.budget.taken == 8 * GEOMETRY.page_bytes
    assert all((one.bytes_of(page) == number).all() for page, number in kept.items())
    one.check()
    assert one.compact() == 0


def test_a_full_slab_says_the_numbers_and_changes_nothing():
    one = slab(pages=10, segment_pages=4)
    one.allocate(7)
    before = accounts(one)
    with pytest.raises(SlabFull, match=r"Asked for 4 pages .* 1 are free and 7 in use, and the limit is"):
        one.allocate(4)
    assert accounts(one) == before
    assert len(one.allocate(3)) == 3


def test_freed_pages_are_poisoned():
    one = slab()
    (page,) = one.allocate(1)
    view, whole = one.key_view(page, 4).fill_(1), one.bytes_of(page)
    one.free([page])
    assert whole.eq(0xFF).all()
    assert view.isnan().all()


def test_shrink_returns_the_empty_segments_and_only_those():
    one = slab(pages=12, segment_pages=4)
    pages = one.allocate(12)
    one.free([page for page in pages if page // 4 != 1])
    assert one.shrink() == 8 * GEOMETRY.page_bytes
    assert one.statistics().pages == 4
    assert one.budget.taken == 4 * GEOMETRY.page_bytes
    one.check()
    again = one.allocate(8)
    assert not set(again) & {page for page in pages if page // 4 == 1}
    one.check()


def test_slabs_of_one_budget_share_the_limit_and_give_each_other_their_empty_segments():
    budget = Budget(8 * GEOMETRY.page_bytes)
    first, second = (Slab(GEOMETRY, CPU, budget, segment_pages=2) for _ in range(2))
    held = first.allocate(6)
    with pytest.raises(SlabFull):
        second.allocate(3)
    first.free(held[:4])
    assert len(second.allocate(6)) == 6
    assert first.statistics().pages == 2
    assert budget.taken == budget.limit
    with pytest.raises(SlabFull):
        first.allocate(1)


def test_what_the_device_refuses_leaves_the_books_as_they_were(monkeypatch):
    one = slab(pages=12, segment_pages=4)
    one.allocate(4)
    before = accounts(one)

    def refuse(*args, **kwargs):
        raise torch.OutOfMemoryError("no memory left")

    with monkeypatch.context() as patch:
        patch.setattr(torch, "empty", refuse)
        with pytest.raises(SlabFull, match="The device refused"):
            one.allocate(2)
    assert accounts(one) == before
    assert len(one.allocate(8)) == 8


def test_check_finds_a_page_in_two_places_and_a_lost_one():
    one = slab()
    (page,) = one.allocate(1)
    slot = one.page(page).slot
    one.segments._free.append(slot)
    with pytest.raises(InvariantError, match="in two places"):
        one.check()
    one.segments._free.remove(slot)
    one.segments._taken.remove(slot)
    with pytest.raises(InvariantError, match="neither free nor in use"):
        one.check()
    one.segments._taken.add(slot)
    del one._pages[page]
    with pytest.raises(InvariantError, match="held by no page"):
        one.check()


def test_allocate_covers_every_position_before_the_end():
    table = PageTable(slab())
    for end, pages in ((0, 0), (1, 1), (2, 1), (3, 2), (3, 2), (8, 4)):
        table.allocate(end)
        assert len(table) == pages
    assert [(p.page, p.row, p.start, p.count) for p in table.pieces(1, 6)] == [
        (table.pages[0], 1, 1, 1),
        (table.pages[1], 0, 2, 2),
        (table.pages[2], 0, 4, 2),
    ]


def test_reserve_copies_the_shared_pages_that_overlap_and_no_others():
    table = PageTable(slab())
    write(table, 0, 8, 1)
    twin = table.share()
    before = twin.pages
    twin.reserve(3, 5)
    assert [a == b for a, b in zip(before, twin.pages, strict=True)] == [True, False, False, True]
    assert [table.slab.references(page) for page in table.pages] == [2, 1, 1, 2]
    assert [read(twin, position) for position in range(8)] == [1.0] * 8


def test_truncate_gives_back_what_lies_wholly_beyond():
    table = PageTable(slab())
    write(table, 0, 8, 1)
    table.truncate(5)
    assert table.end == 6
    assert [read(table, position) for position in range(6)] == [1.0] * 6
    table.truncate(0)
    assert (table.first, table.end) == (0, 0)


def test_release_before_gives_back_what_lies_wholly_before():
    table = PageTable(slab())
    write(table, 0, 8, 1)
    table.release_before(5)
    assert (table.first, table.end, len(table)) == (4, 8, 2)
    with pytest.raises(InvariantError):
        list(table.pieces(3, 6))
    write(table, 7, 11, 2)
    assert [read(table, position) for position in range(4, 11)] == [1, 1, 1, 2, 2, 2, 2]
    table.truncate(0)
    assert (table.first, table.end, table.slab.pages_in_use) == (0, 0, 0)


def test_accept_refuses_another_number_of_pages_than_wanted():
    table = PageTable(slab())
    pages = table.slab.allocate(2)
    with pytest.raises(InvariantError, match="1 were wanted"):
        table.accept(0, 2, pages)
    assert len(table) == 0


class Counting(cache_utils.DynamicSlidingWindowLayer):
    """Keeps running sums, one in a mapping."""

    def __init__(self) -> None:
        super().__init__(sliding_window=3)
        self.sums: dict[str, torch.Tensor | None] = {"keys": None}
        self.count = 0


class Moving(Counting):
    def update(self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        self.count += 1
        return super().update(key_states, value_states)


class Reordering(Counting):
    def update(self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        keys, values = super().update(key_states, value_states)
        return keys.flip(2), values


class Wider(Counting):
    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.cumulative_length + query_length, 0


class Holding(Counting):
    def __init__(self) -> None:
        super().__init__()
        self.other = object()


class Indexed(cache_utils.DynamicIndexedLayer): ...


def test_what_a_class_adds_is_its_state() -> None:
    assert own_fields(Counting()) == ("sums", "count")
    assert why_not(Counting()) is None


@pytest.mark.parametrize(
    ("layer", "reason"),
    [
        (Moving(), "Moving returns other rows than a DynamicSlidingWindowLayer does"),
        (Reordering(), "Reordering returns other rows than a DynamicSlidingWindowLayer does"),
        (Wider(), "Wider returns other rows than a DynamicSlidingWindowLayer does"),
        (Holding(), "Holding keeps other things than tensors and numbers"),
        (Indexed(), "it extends neither of transformers' layers of keys and values"),
    ],
    ids=lambda value: type(value).__name__ if not isinstance(value, str) else "",
)
def test_a_layer_that_pages_cannot_stand_in_for_is_refused(layer: Any, reason: str) -> None:
    found = why_not(layer)
    assert found is not None
    assert reason in found


@pytest.mark.skipif("unlimited_ocr" not in CONFIG_MAPPING, reason="this transformers has no such layer")
def test_a_layer_of_the_library_that_returns_other_rows_is_refused() -> None:
    module = import_module("transformers.models.unlimited_ocr.modeling_unlimited_ocr")
    found = why_not(module.UnlimitedOcrDynamicReferenceSlidingWindowLayer(4))
    assert found is not None
    assert "returns other rows than a DynamicSlidingWindowLayer does" in found


@pytest.mark.parametrize("family", ["deepseek_v4:sliding", "minimax_m3_vl_text:sparse"])
def test_a_fork_and_its_parent_go_their_own_ways(family: str) -> None:
    """Rows and what is beside them, beyond window and blocks; a layer of pages is not the library's from then on."""
    parent = pair(family)
    parent.step(tokens(21))
    child = parent.fork()
    for turn in range(9):
        parent.step(tokens(1, seed=10 + turn))
        child.step(tokens(1, seed=20 + turn))
    child.cache.drop_working()
    child.step(tokens(7, seed=3))
    child.cache.free()
    parent.steps(tokens(3, seed=6))
    made_by_the_library = cache_utils.DYNAMIC_LAYER_TYPE_MAPPING.values()
    assert all(kind.__module__.startswith("transformers.") for kind in made_by_the_library)


FAMILIES = ["mamba2", "jamba", "qwen3_next", "lfm2", "deepseek_v4:sliding", "minimax_m3_vl_text:sparse"]
every_family = pytest.mark.parametrize("family", FAMILIES)


def states_of(cache) -> list[torch.Tensor]:
    return [tensor for state in cache.capture_all().values() for tensor in state.tensors()]


@every_family
def test_a_state_is_put_back_any_number_of_times(family):
    both = pair(family, attention="eager")
    both.step(tokens(20))
    states = both.cache.capture_all()
    frozen = [tensor.clone() for tensor in states_of(both.cache)]
    reference = [both.plain.fork() for _ in range(3)]
    for turn, plain in enumerate(reference):
        both.plain = plain
        both.steps(tokens(4, seed=turn))
        assert any(not torch.equal(a, b) for a, b in zip(states_of(both.cache), frozen, strict=True))
        both.cache.rewind(20)
        both.cache.restore_all(states)
        assert all(torch.equal(a, b) for a, b in zip(states_of(both.cache), frozen, strict=True))
    kept = [tensor for state in states.values() for tensor in state.tensors()]
    assert all(torch.equal(a, b) for a, b in zip(kept, frozen, strict=True))


@every_family
def test_the_state_before_the_first_use_is_one_too(family):
    both = pair(family, attention="eager")
    untouched = both.cache.capture_all()
    assert untouched
    assert all(state.nbytes == 0 for state in untouched.values())
    first = both.paged.step(tokens(20))
    both.cache.rewind(0)
    both.cache.restore_all(untouched)
    assert torch.equal(both.paged.step(tokens(20)), first)
    both.plain.step(tokens(20))
    both.steps(tokens(3, seed=2))


@every_family
def test_a_freed_cache_is_as_good_as_new(family):
    both = pair(family, attention="eager")
    both.step(tokens(20))
    both.cache.free()
    assert both.cache.statistics().device_bytes == 0
    fresh = pair(family, attention="eager")
    both.plain = fresh.plain
    both.step(tokens(20))
    both.steps(tokens(3, seed=2))


def test_attention_layers_have_no_state():
    both = pair("jamba")
    kinds = [layer.kind for layer in both.cache.geometry.layers]
    both.step(tokens(5))
    for index, kind in enumerate(kinds):
        assert (both.cache.capture(index) is None) == (kind == "full")
    state = both.cache.capture(kinds.index("recurrent"))
    with pytest.raises(InvariantError):
        both.cache.restore(kinds.index("full"), state)
    with pytest.raises(InvariantError):
        both.cache.restore(kinds.index("recurrent"), None)


def test_states_are_counted():
    both = pair("mamba2")
    assert both.cache.statistics().recurrent_bytes == 0
    both.step(tokens(5))
    assert both.cache.statistics().recurrent_bytes == both.cache.geometry.recurrent_state_bytes > 0
