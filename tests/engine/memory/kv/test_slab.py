"""Pages are free or held, never both; a verb that raises has changed nothing; memory comes and goes in segments."""

from __future__ import annotations

import pytest
import torch

from djinn_jupyter.engine.memory.budget import Budget
from djinn_jupyter.engine.memory.kv.slab import Slab
from djinn_jupyter.engine.system.faults import InvariantError
from djinn_jupyter.errors import SlabFull
from tests.engine.memory.kv.small import CPU, GEOMETRY, slab


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


def test_a_page_returns_when_its_last_holder_frees_it():
    one = slab()
    pages = one.allocate(3)
    one.share(pages[:2])
    one.free(pages)
    assert [one.references(page) for page in pages] == [1, 1, 0]
    assert one.statistics().pages_shared == 0
    one.free(pages[:2])
    assert one.statistics().pages_free == one.statistics().pages


@pytest.mark.parametrize("verb", ["free", "share"])
def test_what_is_not_held_can_neither_be_freed_nor_shared(verb):
    one = slab()
    pages = one.allocate(3)
    one.free(pages[2:])
    before = accounts(one)
    for wrong in ([pages[2]], [pages[0], pages[2]], [pages[0], pages[0]], [99]):
        with pytest.raises(InvariantError, match="references"):
            getattr(one, verb)(wrong)
        assert accounts(one) == before


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
