"""Caches that run, stop, fork, rewind, cut and lose their working copies in any order, against a model in plain lists.

No forward pass here: rows are numbers, and a stop is a pass in which only the first layers were given theirs.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, field

import pytest
import torch
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from djinn_jupyter.engine.memory.budget import Budget
from djinn_jupyter.engine.memory.kv.cache import PagedCache
from djinn_jupyter.engine.memory.kv.geometry import probe_geometry
from djinn_jupyter.engine.memory.kv.pages import GroupCache, PageTable
from djinn_jupyter.engine.memory.kv.rows import check_invariants
from djinn_jupyter.engine.memory.kv.slab import Slab
from djinn_jupyter.engine.system.faults import InvariantError
from djinn_jupyter.errors import IllegalMove, SlabFull
from tests.engine.memory.kv.runs import CPU
from tests.engine.memory.kv.small import CopiesNothing, CopiesTheTailOnly, build_working
from tests.families import build

LAYERS = 8
WINDOW = 8
PAGE = 4
WHICH = st.integers(0, 4)
STOPS = st.sampled_from([LAYERS, LAYERS, LAYERS, 0, 1, 4, 7])


@functools.cache
def gemma():
    """Two page groups: every third layer attends to everything, the others to a window of eight."""
    model = build("gemma3_text")
    return model.config, probe_geometry(model, CPU, PAGE)


@dataclass
class Line:
    """The expected content of one cache: by layer and position the number written last, None where the row is dead."""

    cache: PagedCache
    length: int = 0
    kept: int = 0  # the shortest length a pass may still enter at
    rows: list[list[float | None]] = field(default_factory=lambda: [[] for _ in range(LAYERS)])
    stopped: tuple[int, int] | None = None  # the end of a pass that stopped, and the layer

    def put(self, layer: int, start: int, values: list[float]) -> None:
        rows = self.rows[layer]
        rows += [None] * (start + len(values) - len(rows))
        rows[start : start + len(values)] = values

    def cut(self, length: int) -> None:
        for rows in self.rows:
            del rows[length:]

    def seen(self, layer: int, start: int, end: int, windowed: bool) -> list[float | None]:
        return self.rows[layer][max(0, start - WINDOW + 1) if windowed else 0 : end]


class Caches(RuleBasedStateMachine):
    kind: type[PageTable] = PageTable
    limit_pages = 60

    @initialize()
    def begin(self):
        self.sets_up()
        self.open()

    def sets_up(self) -> None:
        self.config, self.geometry = gemma()
        self.page = max(group.page_bytes for group in self.geometry.groups)
        self.budget = Budget(self.limit_pages * self.page)
        self.slabs = [Slab(g, CPU, self.budget, segment_pages=3, poison=True) for g in self.geometry.groups]
        self.lines: list[Line] = []
        self.stamp = 0.0

    def adopt(self, cache: PagedCache) -> Line:
        for group in cache.groups:
            group.table.__class__ = self.kind
            group.slack_positions = 4
        self.lines.append(Line(cache))
        return self.lines[-1]

    def line(self, which: int) -> Line:
        return self.lines[which % len(self.lines)]

    @precondition(lambda self: len(self.lines) < 2)
    @rule()
    def open(self):
        self.adopt(PagedCache.create(self.config, self.geometry, self.slabs))

    def enter(self, line: Line, end: int) -> bool:
        """Reserve and enter; return False, with the accounting unchanged, where there is no room."""
        before = [(group.table.pages, group.written) for group in line.cache.groups]
        try:
            line.cache.reserve(line.length, end)
        except SlabFull:
            assert [(group.table.pages, group.written) for group in line.cache.groups] == before
            return False
        line.cache.enter(line.length)
        return True

    def run_layers(self, line: Line, end: int, first: int, stop: int) -> None:
        """Give layers [first, stop) rows for [length, end), compare the rows they attend to; commit after the last."""
        start = line.length
        for index in range(first, stop):
            self.stamp += 1
            values = [self.stamp + 4096.0 * place for place in range(end - start)]
            layer = self.geometry.layers[index]
            keys = torch.tensor(values).view(1, 1, -1, 1).expand(1, layer.kv_heads, -1, layer.key_dim)
            read_keys, read_values = line.cache.update(keys, -keys, index)
            line.put(index, start, values)
            expected = line.seen(index, start, end, layer.window is not None)
            assert None not in expected
            wanted = torch.tensor(expected).view(1, 1, -1, 1)
            assert read_keys.shape[2] == len(expected)
            assert torch.equal(read_keys, wanted.expand_as(read_keys))
            assert torch.equal(read_values, -wanted.expand_as(read_values))
        line.stopped = (end, stop)
        if stop == LAYERS:
            line.cache.commit(end)
            line.length, line.stopped = end, None

    def run(self, which, count, stop):
        """A pass that stops before layer `stop`, or commits."""
        line = self.line(which)
        end = line.length + count
        if self.enter(line, end):
            line.cut(end)
            self.run_layers(line, end, 0, stop)

    @rule(which=WHICH, count=st.integers(9, 24), stop=STOPS)
    def prefill(self, which, count, stop):
        self.run(which, count, stop)

    @rule(which=WHICH, count=st.integers(2, 8), stop=STOPS)
    def chunk(self, which, count, stop):
        self.run(which, count, stop)

    @rule(which=WHICH, times=st.integers(1, 6))
    def steps(self, which, times):
        for _ in range(times):
            self.run(which, 1, LAYERS)

    @rule(which=WHICH, stop=STOPS)
    def step(self, which, stop):
        self.run(which, 1, stop)

    @precondition(lambda self: any(line.stopped for line in self.lines))
    @rule(which=WHICH, stop=STOPS)
    def resume(self, which, stop):
        """Enter a stopped pass again: the layers before it are skipped, the others get new rows."""
        stopped = [line for line in self.lines if line.stopped]
        line = stopped[which % len(stopped)]
        end, first = line.stopped
        if self.enter(line, end):
            self.run_layers(line, end, first, max(first, stop))

    @precondition(lambda self: len(self.lines) < 5)
    @rule(which=WHICH)
    def fork(self, which):
        line = self.line(which)
        twin = self.adopt(line.cache.fork())
        twin.length, twin.kept, twin.stopped = line.length, line.kept, line.stopped
        twin.rows = [list(rows) for rows in line.rows]

    @rule(which=WHICH, back=st.integers(0, 12))
    def rewind(self, which, back):
        line = self.line(which)
        length = max(0, line.length - back)
        if 0 < length < line.kept:
            with pytest.raises(IllegalMove, match="were given up"):
                line.cache.rewind(length)
        else:
            anew = [group for group in line.cache.groups if length == 0 and group.table.first]
            line.cache.rewind(length)
            for layer in (layer for group in anew for layer in group.geometry.layers):
                line.rows[layer.cache_layer].clear()  # a table without its beginning begins anew, with nothing in it
            line.length, line.stopped = length, None
            line.kept = line.kept if length else 0
        for verb in (line.cache.rewind, line.cache.enter):  # there is no way forward but a pass
            with pytest.raises(IllegalMove):
                verb(line.length + 1)
        assert line.cache.length == line.length

    @rule(which=WHICH, more=st.integers(0, 8))
    def truncate(self, which, more):
        """Cut at or beyond the committed length; a stopped pass is given up."""
        line = self.line(which)
        line.cache.truncate(line.length + more)
        line.cut(line.length + more)
        line.stopped = None
        if line.length + more == 0:
            line.kept = 0

    @rule(which=WHICH)
    def release_behind(self, which):
        line = self.line(which)
        line.cache.release_behind()
        first = max(group.table.first for group in line.cache.groups)
        line.kept = first + WINDOW - 1 if first else 0

    @rule(which=WHICH, build=st.booleans())
    def change_the_working_copy(self, which, build):
        line = self.line(which)
        line.cache.drop_working()
        assert line.cache.working_bytes == 0
        if build:
            build_working(line.cache)

    @precondition(lambda self: len(self.lines) < 5)
    @rule(which=WHICH)
    def begin_in_the_memory_of(self, which):
        """A new line takes the working copies of another, which keeps its rows."""
        line, taken = self.line(which), self.budget.taken
        kept = line.cache.working_bytes
        new = self.adopt(PagedCache.create(self.config, self.geometry, self.slabs))
        new.cache.take_working(line.cache)
        assert (new.cache.working_bytes, line.cache.working_bytes, self.budget.taken) == (kept, 0, taken)

    @precondition(lambda self: len(self.lines) > 1)
    @rule(which=WHICH)
    def free(self, which):
        line = self.line(which)
        line.cache.free()
        self.lines.remove(line)
        for slab in self.slabs:
            slab.shrink()

    @invariant()
    def the_books_add_up(self):
        check_invariants(self.slabs, [line.cache for line in self.lines], contents=True)
        assert 0 <= self.budget.taken <= self.budget.limit
        assert all(line.cache.length == line.length for line in self.lines)

    @invariant()
    def the_pages_hold_what_was_written(self):
        for line in self.lines:
            line.cache.flush()
            for group in line.cache.groups:
                for layer in (group.geometry.layers[0], group.geometry.layers[-1]):
                    self.compare_pages(group, layer.cache_layer, line.rows[layer.cache_layer])

    def compare_pages(self, group: GroupCache, layer: int, rows: list[float | None]) -> None:
        for piece in group.table.pieces(group.table.first, min(len(rows), group.table.end)):
            keys = group.slab.key_view(piece.page, layer)[0, piece.row : piece.row + piece.count, 0].tolist()
            values = group.slab.value_view(piece.page, layer)[-1, piece.row : piece.row + piece.count, -1].tolist()
            for place, expected in enumerate(rows[piece.start : piece.start + piece.count]):
                assert expected is None or (keys[place], values[place]) == (expected, -expected)


class NoRoomForWorkingCopies(Caches):
    """Pages only, and too few of them."""

    limit_pages = 30


SLOW = [HealthCheck.too_slow]  # of a busy machine, not of these tests
FEW = settings(max_examples=25, stateful_step_count=25, deadline=None, suppress_health_check=SLOW)
UNTIL_FOUND = settings(FEW, max_examples=500, derandomize=True, database=None, phases=[Phase.generate])
TestCaches = Caches.TestCase
TestCaches.settings = FEW
TestNoRoomForWorkingCopies = NoRoomForWorkingCopies.TestCase
TestNoRoomForWorkingCopies.settings = FEW


@pytest.mark.parametrize("broken", [CopiesNothing, CopiesTheTailOnly])
def test_the_machine_catches_a_cache_that_copies_too_little(broken):
    class Broken(Caches):
        kind = broken

    with pytest.raises((AssertionError, InvariantError)):
        run_state_machine_as_test(Broken, settings=UNTIL_FOUND)
