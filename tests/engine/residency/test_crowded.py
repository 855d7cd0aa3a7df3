"""What fits alone does not fail beside others, whatever asks for room, and its bits are those that it has alone."""

from __future__ import annotations

import functools
import itertools
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from djinn_jupyter.engine.session.session import arrays_within
from djinn_jupyter.methods.datasets.request import Collect, Score
from djinn_jupyter.methods.heads.request import ReadHeads
from djinn_jupyter.methods.sweep.request import Estimate, Sweep
from djinn_jupyter.wire import requests as ask
from djinn_jupyter.wire.replies import Failed, Finished, Paused
from tests import saes
from tests.engine.added import adding
from tests.engine.desk import Desk, tokens
from tests.engine.residency.evicting import held, nothing_left
from tests.engine.residency.test_pressure import PAGE, small, start, until

WHICH = st.integers(0, 9)
METRIC = "logit(17) - logit(42)"
PROMPTS = tuple(tokens(40, seed=number) for number in range(6))
SHARD: dict[str, Any] = {"shard": 0, "first": 0, "last": True}
ROOMY = 400  # pages
MODEL_WIDTH = 32


def failed(replies: list[Any]) -> list[Any]:
    return [one for one in replies if isinstance(one, Failed) or getattr(one, "reason", None) == "slab_full"]


@pytest.mark.parametrize(("rows", "pages"), [(12, 5), (12, 8)])
def test_no_row_of_a_batch_fails_for_want_of_room_at_its_stop(rows: int, pages: int) -> None:
    desk, roomy = small(pages), small(ROOMY)
    names = [f"r{number}" for number in range(rows)]
    for name in names:
        desk.open(name)
        desk.stop_at(2, name=name)
    replies = [start(desk, name, tokens(12, seed=number), 5) for number, name in enumerate(names)]
    until(desk, *replies)
    assert [type(one) for (one,) in replies] == [Paused] * rows
    ends = [[] for _ in names]
    for name, end in zip(names, ends, strict=True):
        desk.post(ask.Resume(session=name, free=True), end)
    until(desk, *ends)
    for number, name in enumerate(names):
        roomy.open(name)
        assert desk.outcome(ends[number][0], name) == roomy.outcome(roomy.run(tokens(12, seed=number), 5, name), name)
    desk.close_all()
    assert nothing_left(desk)


def test_what_a_closed_session_had_is_waited_for_while_its_copies_are_under_way() -> None:
    desk = small(8)
    desk.open("a")
    desk.run(tokens(90), 2, "a")
    mover = held(desk)
    desk.engine.residency.swapping.swap_out(desk.session("a"), "host", "pressure")
    desk.close("a")
    desk.open("b")
    replies = start(desk, "b", tokens(90), 2)
    desk.engine.tick()
    assert not replies
    mover.finish()
    until(desk, replies)
    assert isinstance(replies[0], Finished)
    desk.close_all()


LINE, OTHER = tokens(30, seed=6), tokens(30, seed=5)
GRID = {"corrupted": LINE, "clean": OTHER, "site": "resid_post", "over": ("layer", "position")}
WORK: dict[str, tuple[int, Callable[[str], ask.Request]]] = {  # the fewest pages with which it fits alone
    "sweep": (15, lambda name: Sweep(session=name, **GRID, metrics=(METRIC,))),
    "exact": (12, lambda name: Sweep(session=name, **GRID, metrics=(METRIC,), mode="exact", chosen=(1, 2, 3))),
    "estimate": (12, lambda name: Sweep(session=name, **GRID, metrics=(METRIC,), estimate=Estimate())),
    "collection": (18, lambda name: Collect(session=name, prompts=PROMPTS, sites=("mlp_out.5",), **SHARD)),
    "heads": (5, lambda name: ReadHeads(session=name, lines=(LINE, OTHER))),
    "losses": (24, lambda name: Score(session=name, prompts=(LINE, OTHER, LINE[:20]), mode="fast")),
}


FITTING = ("exact", "estimate", "collection", "heads")  # in the room of the machine below


@pytest.mark.parametrize("kind", ["sweep", "heads", "losses"])  # the others are in the machine below
def test_work_that_reserves_room_gives_it_to_earlier_work_and_begins_anew(kind: str) -> None:
    desk, (pages, work) = engines()[0], WORK[kind]
    told: list[list[Any]] = []
    for names, room in (["tried"], ROOMY), (["alone"], pages), (list("abcd"), pages):
        desk.engine.budget.limit = room * PAGE  # the family is tried before, in more
        ends: list[list[Any]] = [[] for _ in names]
        for name, end in zip(names, ends, strict=True):
            desk.open(name)
            desk.post(work(name), end)
        until(desk, *ends)
        assert not failed([reply for (reply,) in ends]), names
        told += ends
    if kind == "heads":  # of the others calls are as large as there is room
        assert len({bytes(array.data) for (reply,) in told for array in [*arrays_within(reply)][:1]}) == 1
    desk.close_all()
    assert nothing_left(desk)


@functools.lru_cache(maxsize=1)
def folder() -> Path:
    """A folder for checkpoints, and for the files of an SAE."""
    made = Path(tempfile.mkdtemp())
    saes.saved(made / "sae", saes.drawn(MODEL_WIDTH))
    return made


@functools.lru_cache(maxsize=1)
def built() -> tuple[Desk, Desk]:
    desks = small(ROOMY, data_folder=folder() / "one"), small(ROOMY, data_folder=folder() / "two")
    for desk, kind in itertools.product(desks, FITTING):  # the family is tried in much room
        desk.open("tried")
        desk.ask(WORK[kind][1]("tried"))
        desk.close("tried")
    return desks


def engines() -> tuple[Desk, Desk]:
    """Two engines without sessions, of which the first may be given little room."""
    if any(desk.engine.sessions for desk in built()):
        built.cache_clear()  # an example before has failed
    for slab in built()[0].engine.slabs:
        slab.shrink()
    return built()


class Crowd(RuleBasedStateMachine):
    """Sessions that run, stop, look, are forked and restored, sweeps, collections and modules, all at once, in room for
    little more than the largest of them and the modules. A twin with much room does the same one by one."""

    @initialize(pages=st.integers(16, 18))  # 14 are enough for the largest, and two for the modules beside it
    def begin(self, pages: int) -> None:
        self.desk, self.roomy = engines()
        self.desk.engine.budget.limit = pages * PAGE
        self.asked: dict[str, list[Any]] = {}
        self.last: dict[str, Any] = {}
        self.made = self.modules = 0
        self.kept: Any = None

    def free(self) -> list[str]:
        """The sessions that are not asked anything now."""
        return [name for name in self.last if name not in self.asked]

    def stopped(self) -> list[str]:
        return [name for name in self.free() if isinstance(self.last[name], Paused)]

    def post(self, name: str, request: ask.Request) -> None:
        self.asked[name] = []
        self.desk.post(request, self.asked[name])
        self.last[name] = self.roomy.ask(request)

    @precondition(lambda self: len(self.last) < 5)
    @rule(count=st.integers(1, 4))
    def open(self, count: int) -> None:
        for _ in range(count):
            self.made += 1
            name = f"s{self.made}"
            self.desk.open(name)
            self.roomy.open(name)
            self.last[name] = None

    @precondition(lambda self: self.free())
    @rule(
        count=st.integers(1, 9),
        length=st.sampled_from([3, 40, 90]),
        new=st.integers(0, 20),
        stops=st.sampled_from([None, 2, 7]),
    )
    def run(self, count: int, length: int, new: int, stops: int | None) -> None:
        """Run a batch."""
        for number, name in enumerate(self.free()[:count]):
            for desk in (self.desk, self.roomy):
                desk.clear(name)
                if stops is not None:
                    desk.stop_at(stops, name=name)
            prompt = tokens(length, seed=number)
            self.post(name, ask.Run(session=name, tokens=prompt, max_new_tokens=new, ignore_eos=True))

    @precondition(lambda self: self.stopped())
    @rule(which=WHICH, free=st.booleans())
    def resume(self, which: int, free: bool) -> None:
        name = self.stopped()[which % len(self.stopped())]
        self.post(name, ask.Resume(session=name, free=free))

    @precondition(lambda self: self.stopped())
    @rule(which=WHICH, ahead=st.booleans())
    def look(self, which: int, ahead: bool) -> None:
        name = self.stopped()[which % len(self.stopped())]
        self.asked[name] = []
        what = ask.MeasureEffect(session=name) if ahead else ask.Inspect(session=name, site="mlp_out.0")
        self.desk.post(what, self.asked[name])

    @precondition(lambda self: self.stopped() and len(self.last) < 7)
    @rule(which=WHICH)
    def fork(self, which: int) -> None:
        name = self.stopped()[which % len(self.stopped())]
        self.made += 1
        twin = f"s{self.made}"
        self.asked[name] = []
        self.desk.post(ask.Fork(session=name, name=twin), self.asked[name])
        self.everything_is_answered()
        self.roomy.fork(twin, name)
        self.last[twin] = self.last[name]

    @precondition(lambda self: len(self.last) < 9)
    @rule(kind=st.sampled_from(FITTING), count=st.integers(1, 3))
    def work(self, kind: str, count: int) -> None:
        """Sweep, collect, or read heads, in sessions of their own."""
        for _ in range(count):
            self.made += 1
            name = f"w{self.made}"
            for desk in (self.desk, self.roomy):
                desk.open(name)
            self.post(name, WORK[kind][1](name))

    @precondition(lambda self: self.modules < 2)
    @rule()
    def add_a_module(self) -> None:
        self.made, self.modules = self.made + 1, self.modules + 1
        name = f"m{self.made}"
        for desk in (self.desk, self.roomy):
            desk.open(name)
        self.post(name, adding.request(folder() / "sae", "resid_post.4", name, name))

    @precondition(lambda self: self.stopped())
    @rule(which=WHICH)
    def keep(self, which: int) -> None:
        """Save a checkpoint."""
        name = self.stopped()[which % len(self.stopped())]
        self.asked[name] = []
        request = ask.SaveCheckpoint(session=name, name="kept", replace=True)
        self.desk.post(request, self.asked[name])
        self.roomy.ask(request)
        self.kept = self.last[name]
        self.everything_is_answered()

    @precondition(lambda self: self.kept is not None and len(self.last) < 9)
    @rule(count=st.integers(1, 2))
    def restore(self, count: int) -> None:
        for _ in range(count):
            self.made += 1
            name = f"k{self.made}"
            self.post(name, ask.RestoreCheckpoint(session=name, name="kept"))
            self.last[name] = self.kept

    @precondition(lambda self: self.asked)
    @rule(which=WHICH)
    def close(self, which: int) -> None:
        """Close a session, whatever it does."""
        there = [name for name in self.asked if name in self.desk.engine.sessions]  # others are being restored
        if not there:
            return
        name = there[which % len(there)]
        self.desk.close(name)
        self.roomy.close(name)
        del self.asked[name], self.last[name]

    @rule(count=st.integers(1, 40))
    def tick(self, count: int) -> None:
        for _ in range(count):
            self.desk.engine.tick()

    @rule()
    def everything_is_answered(self) -> None:
        """Nothing fails. What can be asked next does not depend on the moments at which copies end."""
        until(self.desk, *self.asked.values())
        found = failed([one for replies in self.asked.values() for one in replies])
        assert not found, found
        self.asked.clear()

    def teardown(self) -> None:
        if not hasattr(self, "desk"):
            return
        self.everything_is_answered()
        for name, last in self.last.items():
            if isinstance(last, Finished):
                assert self.desk.session(name).tokens == self.roomy.session(name).tokens
                assert torch.equal(self.desk.logits(name), self.roomy.logits(name))
            elif isinstance(last, Paused):
                assert torch.equal(self.desk.value(name=name), self.roomy.value(name=name))
        for desk in (self.desk, self.roomy):
            desk.close_all()
            for module in desk.ask(ask.ListAddedModules()).modules:
                desk.ask(ask.RemoveModule(name=module.name))
        assert nothing_left(self.desk)


TestCrowd = Crowd.TestCase
TestCrowd.settings = settings(
    max_examples=12,
    stateful_step_count=20,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
