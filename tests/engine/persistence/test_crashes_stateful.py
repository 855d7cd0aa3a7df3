"""Engines die in the midst of any sequence of moves, and the next one goes on: every line is as if none had died,
and a session that lay on disk is found there, not made again."""

from __future__ import annotations

import functools
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule, run_state_machine_as_test

from djinn_jupyter.engine.store import load
from djinn_jupyter.wire import requests as ask
from tests.engine.desk import Desk, build_desk
from tests.engine.persistence.crashes import crashed, forget, journal, written
from tests.engine.session.test_history_machine import PICK, HistoryMachine, Side, alive, when
from tests.families import build


@functools.cache
def desks() -> tuple[Desk, Desk]:
    """Two engines of one hybrid model, with pages and recurrent states, that take turns."""
    return build_desk(build("jamba", layers=4)), build_desk(build("jamba", layers=4))


class CrashMachine(HistoryMachine):
    """The base's moves, with engines that are killed or end in order, and with sessions that leave the device, are
    saved to files and restored, in the same engine or in one after it."""

    family = "jamba"

    def first_desk(self) -> Desk:
        self.folder = tempfile.TemporaryDirectory()
        self.alive, self.crashes = Path(self.folder.name) / "0", 0
        self.saved: dict[str, Side] = {}
        first, self.next = desks()
        assert journal(first, self.alive) == ()
        return first

    def teardown(self) -> None:
        for file in self.saved:
            self.desk.ask(ask.DropCheckpoint(name=file))
        forget(self.desk)
        self.desk.engine.storage_table.purge()
        self.desk.engine.check_invariants()
        assert self.desk.engine.tiers.disk.used == 0
        self.folder.cleanup()

    @rule(pick=PICK, tier=st.sampled_from(["host", "disk"]))
    @when(alive)
    def swap_out(self, pick: int, tier: str) -> None:
        name = self.pick(alive, pick).name
        self.desk.swap_out(name, tier)
        assert self.desk.session(name).residence.state in (tier, "disk")

    @rule(pick=PICK)
    @when(alive)
    def swap_in(self, pick: int) -> None:
        self.desk.swap_in(self.pick(alive, pick).name)

    @rule(pick=PICK, file=st.sampled_from(["noon", "evening"]))
    @when(alive)
    def checkpoint(self, pick: int, file: str) -> None:
        side = self.pick(alive, pick)
        self.desk.ask(ask.SaveCheckpoint(session=side.name, name=file, replace=True))
        self.saved[file] = replace(side)

    @rule(pick=PICK, file=st.sampled_from(["noon", "evening"]))
    @when(alive)
    def restore(self, pick: int, file: str) -> None:
        """Restore a file over a session in any later state."""
        if file in self.saved:
            name = self.pick(alive, pick).name
            self.desk.ask(ask.RestoreCheckpoint(session=name, name=file, replace=True))
            self.sides[name] = replace(self.saved[file], name=name)

    @rule(away=st.sets(st.integers(0, 3)), in_order=st.booleans())
    @precondition(lambda self: bool(self.sides) and self.crashes < 4)
    def crash(self, away: set[int], in_order: bool) -> None:
        """Kill or end the engine. The sessions `away` have just left for the disk; of an engine that ends in order, all
        that have tokens."""
        names = list(self.sides)
        left = {names[pick] for pick in away if pick < len(names)}
        for name in left:
            self.desk.swap_out(name, "disk")
        if in_order:
            self.desk.engine.orderly_shutdown.put_away()
            left = {name for name in names if self.desk.session(name).residence.state == "disk"}
            assert left >= {
                name for name in names if (one := self.desk.session(name)).committed and not one.needs_recompute
            }
        before = {name: self.desk.session(name).exactness for name in left}
        written(self.desk)
        self.crashes += 1
        dead = crashed(self.alive, Path(self.folder.name) / str(self.crashes))
        forget(self.desk)
        self.desk, self.next, self.alive = self.next, self.desk, dead
        assert set(journal(self.desk, dead)) == set(names)
        run_before = self.desk.engine.counters.layers_run
        for name in left:
            found = self.desk.session(name)
            assert (found.exactness, found.needs_recompute) == (before[name], False)
            self.desk.ask(ask.Open(session=name))
            self.desk.swap_in(name)
        assert self.desk.engine.counters.layers_run == run_before


CrashMachine.TestCase.settings = settings(
    max_examples=10,
    stateful_step_count=20,
    deadline=None,
    suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.too_slow],
)
TestCrashes = CrashMachine.TestCase


@pytest.mark.slow
def test_the_machine_catches_a_restore_without_states(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load, "states_of", lambda *_: {})
    many = settings(
        CrashMachine.TestCase.settings,
        max_examples=400,
        stateful_step_count=30,
        derandomize=True,
        database=None,
        phases=[Phase.generate],
    )
    desks.cache_clear()
    with pytest.raises(AssertionError):
        run_state_machine_as_test(CrashMachine, settings=many)
    desks.cache_clear()
