"""Engines die in the midst of any sequence of moves, and the next one goes on: every line is what it would have been,
and a session that lay on disk is found there, not made again."""

from __future__ import annotations

import functools
import tempfile
from pathlib import Path

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from djinn_jupyter.wire import requests as ask
from tests.engine.desk import Desk, build_desk
from tests.engine.test_history_machine import HistoryMachine
from tests.families import build
from tests.keeping.crashes import crashed, forget, journal, written


@functools.cache
def desks() -> tuple[Desk, Desk]:
    """Two engines of one hybrid model, with pages and recurrent states, that take turns."""
    return build_desk(build("jamba", layers=4)), build_desk(build("jamba", layers=4))


class CrashMachine(HistoryMachine):
    """What the base does, by engines that are killed."""

    family = "jamba"

    def first_desk(self) -> Desk:
        self.folder = tempfile.TemporaryDirectory()
        self.alive, self.crashes = Path(self.folder.name) / "0", 0
        first, self.next = desks()
        assert journal(first, self.alive) == ()
        return first

    def teardown(self) -> None:
        forget(self.desk)
        self.desk.engine.blobs.purge()
        self.desk.engine.check_books()
        assert self.desk.engine.tiers.disk.used == 0
        self.folder.cleanup()

    @rule(away=st.sets(st.integers(0, 3)))
    @precondition(lambda self: bool(self.sides) and self.crashes < 4)
    def crash(self, away: set[int]) -> None:
        """Those `away` have just left for the disk."""
        names = list(self.sides)
        left = {names[pick] for pick in away if pick < len(names)}
        for name in left:
            self.desk.swap_out(name, "disk")
        before = {name: self.desk.session(name).exactness for name in left}
        written(self.desk)
        self.crashes += 1
        dead = crashed(self.alive, Path(self.folder.name) / str(self.crashes))
        forget(self.desk)
        self.desk, self.next, self.alive = self.next, self.desk, dead
        assert set(journal(self.desk, dead)) == set(names)
        run_before = self.desk.engine.books.layers_run
        for name in left:
            found = self.desk.session(name)
            assert (found.exactness, found.lost) == (before[name], False)
            self.desk.ask(ask.Open(session=name))
            self.desk.swap_in(name)
        assert self.desk.engine.books.layers_run == run_before


CrashMachine.TestCase.settings = settings(
    max_examples=6,
    stateful_step_count=20,
    deadline=None,
    suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.too_slow],
)
TestCrashes = CrashMachine.TestCase
