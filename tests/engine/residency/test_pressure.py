"""More sessions than the device holds: unused sessions make room, no bits change, and no session waits for ever."""

from __future__ import annotations

import random
from typing import Any

import pytest

from djinn_jupyter.engine.memory.budget import Budget
from djinn_jupyter.engine.process.daemon import LONGEST_WAIT_SECONDS, WATCHFUL_WAIT_SECONDS, longest_wait
from djinn_jupyter.errors import SlabFull
from djinn_jupyter.wire import requests as ask
from djinn_jupyter.wire.replies import Paused, SessionSwapped
from tests.engine.desk import Desk, Outcome, build_desk, tokens
from tests.engine.plain import generate, plain_of
from tests.engine.residency.evicting import nothing_left
from tests.families import build

pytestmark = pytest.mark.drawn

PAGE = 8 * 2 * 2 * 16 * 8 * 4  # layers, key and value, heads, positions, features, bytes
NEW = 4


def small(pages: int, **config: Any) -> Desk:
    """A tiny Llama's engine whose slab holds so many pages; freed ones are poisoned."""
    model = build("llama")
    weights = sum(p.numel() * p.element_size() for p in model.parameters())
    desk = build_desk(model, device_memory=weights + pages * PAGE, **config)
    for slab in desk.engine.slabs:
        slab.shrink()
        slab.segments.poison, slab.segments.segment_slots = True, 4
    return desk


def plain(prompt: tuple[int, ...], new: int = NEW) -> Outcome:
    return generate(plain_of("llama"), prompt, new)


def start(desk: Desk, name: str, prompt: tuple[int, ...], new: int = NEW) -> list[Any]:
    replies: list[Any] = []
    desk.post(ask.Run(session=name, tokens=prompt, max_new_tokens=new, ignore_eos=True), replies)
    return replies


def until(desk: Desk, *replies: list[Any]) -> None:
    while not all(replies):
        if not desk.engine.tick():
            assert desk.engine.tiers.moving, "idle, and somebody is not answered"
            assert all(job.waits for job in desk.engine.scheduler.jobs)
            desk.engine.mailbox.wait(1.0)


class Sampled(Budget):
    """Every value that `taken` ever had."""

    def __setattr__(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, value)
        if name == "taken":
            self.__dict__.setdefault("samples", []).append(value)


def test_many_sessions_on_a_third_of_what_they_need() -> None:
    """All are alive at once; each is stopped in its prompt, then they are resumed out of order, several at a time."""
    pages, count = 40, 25
    desk = small(pages, idle_swap_seconds=3600.0)  # none leaves for idleness, however long this takes
    budget: Any = desk.engine.slabs[0].budget
    budget.__class__ = Sampled
    prompts = {f"s{n}": tokens(60 + n % 30, seed=n) for n in range(count)}
    for name, prompt in prompts.items():
        desk.open(name)
        desk.stop_at(4, "step == 0", name)
        assert isinstance(desk.run(prompt, NEW, name), Paused)
    order = list(prompts)
    random.Random(1).shuffle(order)
    for first in range(0, count, 5):
        ends: dict[str, list[Any]] = {name: [] for name in order[first : first + 5]}
        for name, replies in ends.items():
            desk.post(ask.Resume(session=name), replies)
        until(desk, *ends.values())
        for name, replies in ends.items():
            assert desk.outcome(replies[0], name) == plain(prompts[name]), name
    demand = sum(session.cache.statistics().pages for session in desk.engine.sessions.values())
    assert len(desk.engine.sessions) == count
    assert demand >= 3 * pages
    assert 0 < max(budget.samples) <= budget.limit <= (pages + 1) * PAGE
    assert budget.overdrawn == 0
    assert len(budget.samples) > 50, "working copies come and go with every switch"
    moved = [event.transfer for event in desk.events if isinstance(event, SessionSwapped)]
    assert {transfer.cause for transfer in moved} == {"pressure", "needed"}
    desk.close_all()
    assert nothing_left(desk)


def test_what_cannot_fit_is_refused_with_the_numbers_when_nobody_can_leave() -> None:
    desk = small(12)
    desk.open("a")
    desk.run(tokens(60), 2, "a")
    desk.open("b")
    with pytest.raises(SlabFull, match=r"Asked for .* pages of .* and the limit is"):
        desk.run(tokens(400), 2, "b")
    assert desk.outcome(desk.run(tokens(60), 3, "b"), "b") == plain(tokens(60), 3)
    desk.close_all()


def test_of_two_growing_runs_the_later_leaves_for_the_earlier_and_both_come_to_their_end() -> None:
    desk, ends = small(12), {}
    for name in "ab":
        desk.open(name)
        ends[name] = start(desk, name, tokens(70, seed=3), 90)
    until(desk, *ends.values())
    for name, replies in ends.items():
        assert desk.outcome(replies[0], name) == plain(tokens(70, seed=3), 90)
    assert any(isinstance(event, SessionSwapped) for event in desk.events)
    desk.close_all()
    assert nothing_left(desk)


def test_growing_runs_that_no_tier_can_help_end_where_they_are() -> None:
    desk, ends = small(12, host_memory=0, disk_memory=0), {}
    for name in "ab":
        desk.open(name)
        ends[name] = start(desk, name, tokens(70, seed=3), 90)
    until(desk, *ends.values())
    assert {replies[0].reason for replies in ends.values()} == {"slab_full"}
    whole = plain(tokens(70, seed=3), 90).tokens
    for replies in ends.values():
        assert replies[0].tokens == whole[: len(replies[0].tokens)]
    desk.close("a")
    had = len(ends["b"][0].tokens)
    assert desk.run((), 3, "b", extend=True).tokens == whole[had : had + 3], "and go on from there when there is room"
    desk.close_all()


def waits(desk: Desk, name: str) -> bool:
    job = desk.engine.scheduler.job_of(desk.session(name))
    return job is not None and job.waits


def test_a_run_that_is_paused_while_it_waits_for_room_ends_with_what_it_has_and_another_goes_on() -> None:
    """Its user would wait for as long as the other run lasts."""
    desk, ends = small(12), {}
    for name in "ab":
        desk.open(name)
        ends[name] = start(desk, name, tokens(70, seed=3), 90)
    while not (waiting := [name for name in ends if waits(desk, name)]):
        desk.engine.tick()
    (name,) = waiting
    (other,) = {*ends} - {name}
    pausing: list[Any] = []
    desk.post(ask.Pause(session=name), pausing)
    while not ends[name]:
        desk.engine.tick()
    assert (pausing[0].was_running, ends[other]) == (True, [])
    ended = ends[name][0]
    assert (ended.reason, "was paused while it waited for room" in ended.detail) == ("slab_full", True)
    until(desk, ends[other])
    whole = plain(tokens(70, seed=3), 90)
    assert desk.outcome(ends[other][0], other) == whole, "with the room of the one that was paused"
    had = len(ended.tokens)
    assert 0 < had < 90
    assert ended.tokens == whole.tokens[:had]
    assert desk.run((), 90 - had, name, extend=True).tokens == whole.tokens[had:]
    desk.close_all()


def test_a_run_that_is_paused_before_there_is_room_for_its_prompt_is_refused_and_can_be_run_again() -> None:
    desk = small(12)
    desk.open("a")
    running = start(desk, "a", tokens(100), 60)
    while len(desk.session("a").tokens) < 102:
        desk.engine.tick()
    desk.open("b")
    waiting = start(desk, "b", tokens(100, seed=2))
    while not desk.session("b").residence.wants_room:
        desk.engine.tick()
    pausing: list[Any] = []
    desk.post(ask.Pause(session="b"), pausing)
    until(desk, waiting, pausing)
    assert (pausing[0].was_running, running) == (True, [])
    assert waiting[0].message == "Session 'b' was paused before there was room for its run; run it again."
    until(desk, running)
    assert desk.outcome(desk.run(tokens(100, seed=2), NEW, "b"), "b") == plain(tokens(100, seed=2))
    desk.close_all()


@pytest.mark.parametrize("request_of", [ask.Resume, lambda session: ask.Step(session=session, by="token")])
def test_a_stop_that_is_to_go_on_without_room_stays_a_stop_when_it_is_paused(request_of: Any) -> None:
    desk = small(12)
    desk.open("a")
    desk.stop_at(4, "step == 0", "a")
    desk.run(tokens(70, seed=2), NEW, "a")
    desk.open("b")
    running = start(desk, "b", tokens(100), 60)
    while len(desk.session("b").tokens) < 102:
        desk.engine.tick()
    assert not desk.session("a").residence.present
    waiting: list[Any] = []
    desk.post(request_of(session="a"), waiting)
    while not desk.session("a").residence.waits_for_room:
        desk.engine.tick()
    pausing: list[Any] = []
    desk.post(ask.Pause(session="a"), pausing)
    until(desk, waiting, pausing)
    assert (pausing[0].was_running, running) == (True, [])
    assert waiting[0].message == "Session 'a' was paused before there was room for it to go on; ask again."
    assert desk.session("a").state == "paused"
    until(desk, running)
    assert desk.outcome(desk.resume("a"), "a") == plain(tokens(70, seed=2))
    desk.close_all()


def test_a_session_without_use_leaves_by_itself() -> None:
    desk = small(40)
    clock = [0.0]
    for name in "ab":
        desk.open(name)
        desk.run(tokens(60), 1, name)
    room = desk.engine.residency.eviction
    room._clock = lambda: clock[0]
    clock[0] = desk.session("b").residence.touched + 30.0
    desk.session("a").residence.touched = clock[0] - 61.0
    while desk.engine.tick() or desk.engine.tiers.moving:
        desk.engine.mailbox.wait(0.1)
    told = [desk.describe(name) for name in "ab"]
    assert [t.residency for t in told] == ["host", "resident"]
    assert told[0].last_transfer.cause == "idleness"
    assert told[1].dirty_bytes == 0, "at rest, and written through"
    assert longest_wait(desk.engine) == WATCHFUL_WAIT_SECONDS, "b is to leave in half a minute"
    clock[0] += 40.0
    desk.settle()
    assert desk.describe("b").residency == "host"
    assert desk.describe("b").last_transfer.bytes_moved == 0
    slab = desk.engine.slabs[0]
    assert (slab.pages_in_use > 0, slab.segment_bytes > 0) == (True, True), "who comes back soon finds places"
    desk.engine.tick()
    assert longest_wait(desk.engine) == WATCHFUL_WAIT_SECONDS, "there is memory to give back"
    clock[0] += 4.0
    desk.engine.tick()
    assert slab.segment_bytes == 0, "and later, others find memory"
    assert longest_wait(desk.engine) == LONGEST_WAIT_SECONDS, "nothing can come due"
    desk.close_all()


def test_what_cannot_leave_for_idleness_is_not_tried_at_every_tick() -> None:
    desk = small(40, host_memory=1 << 12, disk_memory=0)
    desk.open("a")
    desk.run(tokens(60), 1)
    desk.session().residence.touched -= 100.0
    seen = []
    leave = desk.engine.residency.swapping.swap_out
    desk.engine.residency.swapping.swap_out = lambda *args: (seen.append(args), leave(*args))  # type: ignore[method-assign]
    for _ in range(5):
        desk.engine.tick()
    assert len(seen) == 1
    assert desk.describe().residency == "resident"
    desk.close_all()
