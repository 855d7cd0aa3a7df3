"""The page that holds a position, the tables that may write it, and the effect of a broken copying rule."""

from __future__ import annotations

import pytest

from djinn_jupyter.engine.memory.kv.pages import PageTable
from djinn_jupyter.engine.system.faults import InvariantError
from djinn_jupyter.errors import SlabFull
from tests.engine.memory.kv.small import CopiesNothing, CopiesTheTailOnly, read, slab, write


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


def test_positions_without_a_page_cannot_be_read():
    table = PageTable(slab())
    table.allocate(4)
    with pytest.raises(InvariantError, match="there are pages for"):
        list(table.pieces(3, 5))
    assert len(table) == 2


def test_reserve_copies_the_shared_pages_that_overlap_and_no_others():
    table = PageTable(slab())
    write(table, 0, 8, 1)
    twin = table.share()
    before = twin.pages
    twin.reserve(3, 5)
    assert [a == b for a, b in zip(before, twin.pages, strict=True)] == [True, False, False, True]
    assert [table.slab.references(page) for page in table.pages] == [2, 1, 1, 2]
    assert [read(twin, position) for position in range(8)] == [1.0] * 8


def test_a_reserve_that_finds_no_page_changes_nothing():
    subject = slab(pages=6)
    table = PageTable(subject)
    write(table, 0, 6, 1)
    twin = table.share()
    before = (table.pages, twin.pages, subject.statistics())
    with pytest.raises(SlabFull):
        twin.reserve(0, 8)
    assert (table.pages, twin.pages, subject.statistics()) == before
    subject.check()


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


def written_after_a_fork(kind: type[PageTable]) -> list[float]:
    """Return the values that a parent reads at 1..5 after its fork has written over positions 1..5."""
    parent = kind(slab())
    write(parent, 0, 6, 1)
    child = parent.share()
    write(child, 1, 6, 2)
    return [read(parent, position) for position in range(1, 6)]


def test_a_fork_that_writes_leaves_its_parent_alone():
    assert written_after_a_fork(PageTable) == [1.0] * 5


@pytest.mark.parametrize("kind", [CopiesNothing, CopiesTheTailOnly])
def test_without_copying_every_page_the_same_scenario_fails(kind):
    assert written_after_a_fork(kind) != [1.0] * 5
