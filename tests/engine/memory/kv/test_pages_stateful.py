"""Tables that share, write, cut and free in any order, against a model that knows only the last write of each."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)

from djinn_jupyter.engine.memory.kv.pages import PageTable
from djinn_jupyter.engine.system.faults import InvariantError
from djinn_jupyter.errors import SlabFull
from tests.engine.memory.kv.small import CopiesNothing, CopiesTheTailOnly, read, slab, write

POSITIONS = st.integers(0, 14)


class Pages(RuleBasedStateMachine):
    """`contents[table]` maps each position to its owner's last write there. A dead table is empty."""

    kind: type[PageTable] = PageTable
    tables = Bundle("tables")

    @initialize()
    def begin(self):
        self.slab = slab(pages=20, segment_pages=4)
        self.contents: dict[PageTable, dict[int, float]] = {}
        self.stamp = 0.0

    def accounts(self):
        tables = {table: (table.pages, table.first) for table in self.contents}
        return tables, self.slab.statistics(), self.slab.budget.taken

    @rule(target=tables)
    def open(self):
        table = self.kind(self.slab)
        self.contents[table] = {}
        return table

    @rule(table=tables, start=POSITIONS, count=st.integers(1, 6))
    def write(self, table, start, count):
        start = max(start, table.first)
        self.stamp = (self.stamp + 1) % 250  # exact in bfloat16
        before = self.accounts()
        try:
            write(table, start, start + count, self.stamp)
        except SlabFull:
            assert self.accounts() == before
            return
        self.contents[table].update(dict.fromkeys(range(start, start + count), self.stamp))

    @rule(target=tables, table=tables)
    def share(self, table):
        twin = table.share()
        self.contents[twin] = dict(self.contents[table])
        return twin

    @rule(table=tables, length=POSITIONS)
    def truncate(self, table, length):
        if 0 < length < table.first:
            return
        table.truncate(length)
        kept = {p: value for p, value in self.contents[table].items() if p < table.end}
        self.contents[table] = kept

    @rule(table=tables, position=POSITIONS)
    def release_before(self, table, position):
        table.release_before(position)
        assert table.first <= max(position, table.first)
        kept = {p: value for p, value in self.contents[table].items() if p >= table.first}
        self.contents[table] = kept

    @rule(table=consumes(tables))
    def free(self, table):
        table.free()
        del self.contents[table]

    @rule()
    def shrink(self):
        self.slab.shrink()

    @rule(table=tables, page=st.integers(0, 30))
    def free_a_page_that_is_not_held(self, table, page):
        if self.slab.references(page):
            return
        before = self.accounts()
        for verb in (self.slab.free, self.slab.share):
            with pytest.raises(InvariantError):
                verb([*table.pages, page])
        assert self.accounts() == before

    @rule(table=tables)
    def read_beyond_the_end(self, table):
        with pytest.raises(InvariantError):
            list(table.pieces(table.end, table.end + 1))

    @invariant()
    def every_owner_reads_what_it_wrote(self):
        for table, written in self.contents.items():
            for position, value in written.items():
                assert read(table, position) == value

    @invariant()
    def the_books_add_up(self):
        self.slab.check()
        held = [page for table in self.contents for page in table.pages]
        assert all(self.slab.references(page) == held.count(page) for page in held)
        assert self.slab.pages_in_use == len(set(held))
        assert self.slab.budget.taken == self.slab.segment_bytes <= self.slab.budget.limit
        for table in self.contents:
            table.check()


SLOW = [HealthCheck.too_slow]  # of a busy machine, not of these tests
FEW = settings(max_examples=60, stateful_step_count=25, deadline=None, suppress_health_check=SLOW)
UNTIL_FOUND = settings(FEW, max_examples=500, derandomize=True, database=None, phases=[Phase.generate])
TestPages = Pages.TestCase
TestPages.settings = FEW


@pytest.mark.parametrize("broken", [CopiesNothing, CopiesTheTailOnly])
def test_the_machine_catches_a_table_that_copies_too_little(broken):
    class Broken(Pages):
        kind = broken

    with pytest.raises(AssertionError):
        run_state_machine_as_test(Broken, settings=UNTIL_FOUND)
