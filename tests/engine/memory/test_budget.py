"""One limit for pages and working copies: the order in which they give way; a refusal leaves everything as it was."""

from __future__ import annotations

import pytest
import torch

from djinn_jupyter.engine.memory.budget import Budget
from djinn_jupyter.engine.memory.kv.cache import PagedCache
from djinn_jupyter.engine.memory.kv.geometry import probe_geometry
from djinn_jupyter.engine.memory.kv.rows import check_invariants
from djinn_jupyter.engine.memory.kv.slab import Slab
from djinn_jupyter.engine.system.faults import InvariantError
from djinn_jupyter.errors import SlabFull
from tests.engine.memory.kv.runs import CPU, PAGE, pair, tokens
from tests.families import build


def caches(count: int, pages: int, family: str = "llama", slack: int = 16) -> tuple[list[PagedCache], list[Slab]]:
    """Empty caches on one budget of so many pages, in bytes of the largest group."""
    model = build(family)
    geometry = probe_geometry(model, CPU, PAGE)
    budget = Budget(pages * max(group.page_bytes for group in geometry.groups))
    slabs = [Slab(group, CPU, budget, segment_pages=1) for group in geometry.groups]
    made = [PagedCache.create(model.config, geometry, slabs) for _ in range(count)]
    for cache in made:
        for group in cache.groups:
            group.slack_positions = slack
    return made, slabs


def fill(cache: PagedCache, end: int) -> None:
    """Rows for every layer up to `end`, as a forward would give them."""
    start = cache.length
    cache.reserve(start, end)
    cache.enter(start)
    for layer in cache.geometry.layers:
        rows = torch.full((1, layer.kv_heads, end - start, layer.key_dim), 1.0 + layer.cache_layer)
        cache.update(rows, rows, layer.cache_layer)
    cache.commit(end)


def test_the_working_copy_used_longest_ago_gives_way_first():
    (a, b, c), slabs = caches(3, pages=7)
    fill(a, PAGE)  # one page and a working copy of two pages each
    fill(b, PAGE)
    assert a.working_bytes == b.working_bytes == 2 * slabs[0].geometry.page_bytes
    a.reserve(PAGE, PAGE)  # a is in use again
    fill(c, PAGE)
    assert (a.working_bytes > 0, b.working_bytes, c.working_bytes > 0) == (True, 0, True)
    check_invariants(slabs, [a, b, c], contents=True)


def test_pages_are_never_refused_while_a_working_copy_could_give_way():
    (a, b), slabs = caches(2, pages=8)
    fill(a, 3 * PAGE)
    assert a.working_bytes
    fill(b, 5 * PAGE)
    assert a.working_bytes == b.working_bytes == 0
    check_invariants(slabs, [a, b], contents=True)
    with pytest.raises(SlabFull, match="Asked for 1 pages"):
        b.reserve(5 * PAGE, 5 * PAGE + 1)


def test_a_reserve_that_does_not_fit_leaves_both_groups_as_they_were():
    (a, b), slabs = caches(2, pages=12, family="gemma3_text")
    fill(a, 5 * PAGE)
    fill(b, PAGE)
    fork = b.fork()
    before = [(s.statistics().pages_free, s.statistics().pages, s.pages_in_use) for s in slabs], b.statistics().pages
    tables = [group.table.pages for cache in (a, b, fork) for group in cache.groups]
    with pytest.raises(SlabFull):
        b.reserve(PAGE, 9 * PAGE)
    assert [group.table.pages for cache in (a, b, fork) for group in cache.groups] == tables
    assert sum(slab.pages_in_use for slab in slabs) == sum(in_use for _, _, in_use in before[0])
    check_invariants(slabs, [a, b, fork], contents=True)
    fill(b, 2 * PAGE)


def test_a_copy_shorter_than_wished_is_better_than_none():
    (a,), slabs = caches(1, pages=5, slack=1000)
    fill(a, 2 * PAGE)
    assert a.working_bytes == 2 * slabs[0].geometry.page_bytes


def test_decode_steps_do_not_rebuild_the_working_copy():
    both = pair("llama")
    both.step(tokens(20))
    built = both.cache.groups[0].working
    both.steps(tokens(40, seed=2))
    assert both.cache.groups[0].working is built
    assert built.capacity >= 20 + 256


def test_a_working_copy_for_one_pass_has_no_room_to_grow_in():
    both = pair("llama")
    both.step(tokens(20))
    both.cache.drop_working()
    both.cache.reserve(20, 21, once=True)
    built = both.cache.groups[0].working
    assert built.capacity == 21
    both.step(tokens(1, seed=2))
    assert both.cache.groups[0].working is built
    both.step(tokens(1, seed=3))
    assert both.cache.groups[0].working.capacity >= 22 + 256


def test_a_window_keeps_no_more_than_it_needs():
    both = pair("mistral")
    both.cache.groups[0].slack_positions = 16
    both.step(tokens(100))
    both.steps(tokens(60, seed=2))
    both.cache.release_behind()
    group = both.cache.groups[0]
    assert group.working.capacity <= 2 * PAGE
    assert len(group.table) <= 2
    both.steps(tokens(40, seed=3))
    both.cache.release_behind()
    check_invariants(both.slabs, [both.cache], contents=True)


def test_a_working_copy_the_device_refuses_is_done_without(monkeypatch):
    both = pair("gemma3_text")
    both.step(tokens(20))
    both.cache.drop_working()

    def refuse(*args, **kwargs):
        raise torch.OutOfMemoryError("no memory left")

    from djinn_jupyter.engine.memory.kv import pages as working_copy

    monkeypatch.setattr(working_copy, "uninitialised", refuse)
    both.steps(tokens(3, seed=2))
    assert both.cache.working_bytes == 0
    monkeypatch.undo()
    both.steps(tokens(3, seed=3))
    assert both.cache.working_bytes
    check_invariants(both.slabs, [both.cache], contents=True)


def test_the_budget_refuses_to_be_given_more_than_was_taken():
    budget = Budget(100)
    budget.take(60, by=None)
    with pytest.raises(InvariantError):
        budget.give_back(61)
    with pytest.raises(SlabFull):
        budget.take(41, by=None)
    assert (budget.taken, budget.free) == (60, 40)


def test_books_that_do_not_add_up_are_found():
    (a, b), slabs = caches(2, pages=12)
    fill(a, PAGE)
    with pytest.raises(InvariantError, match="tables hold 0"):
        check_invariants(slabs, [b])
    slabs[0].share(a.groups[0].table.pages)
    with pytest.raises(InvariantError, match="differently in the slab"):
        check_invariants(slabs, [a, b])
    slabs[0].free(a.groups[0].table.pages)
    slabs[0].budget.taken += 1
    with pytest.raises(InvariantError, match="bytes are taken"):
        check_invariants(slabs, [a, b])


def test_statistics_count_the_session_and_the_slab():
    both = pair("gemma3_text")
    both.step(tokens(20))
    child = both.fork()
    child.step(tokens(1))
    parent, twin = both.cache.statistics(), child.cache.statistics()
    assert (parent.length, twin.length) == (20, 21)
    assert parent.pages == twin.pages == 4
    assert parent.pages_shared == twin.pages_shared == 2
    assert parent.device_bytes == parent.page_bytes + parent.working_bytes
    assert sum(s.statistics().working_bytes for s in both.slabs) == parent.working_bytes + twin.working_bytes
    assert [s.statistics().pages_shared for s in both.slabs] == [1, 1]
