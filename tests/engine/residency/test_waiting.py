"""Requests to a session that is away or on its way: each answered once, in order, in turn; and the seconds of moves."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch

from djinn_jupyter.engine.memory.offload import mover
from djinn_jupyter.engine.memory.offload.extents import Span
from djinn_jupyter.engine.memory.offload.mover import Copy, MoverBatch, perform
from djinn_jupyter.engine.memory.weights.host_weights import HOST
from djinn_jupyter.engine.residency import eviction
from djinn_jupyter.engine.session import residence
from djinn_jupyter.engine.session.residence import Residence, Swap
from djinn_jupyter.wire import requests as ask
from djinn_jupyter.wire.edits import PatchFrom
from djinn_jupyter.wire.replies import Closed, Failed, Finished, Inspected, Paused
from tests.engine.desk import PAGE as PAGE_POSITIONS
from tests.engine.desk import Desk, tokens
from tests.engine.residency.evicting import PROMPT, Clock, held, made, nothing_left, post, until_idle
from tests.engine.residency.test_pressure import small, start, until
from tests.streams import Gpu, Step, instead_of_cuda


def test_who_needs_the_bytes_waits_for_them_and_others_do_not(desk: Desk) -> None:
    desk.stop_at(4)
    stop = desk.run(PROMPT, 3)
    desk.swap_out()
    mover = held(desk)
    looks = post(desk, ask.Inspect(session="a"))
    assert not looks
    assert desk.describe().residency == "loading"
    assert post(desk, ask.Describe(session="a"))[0].session.stopped_at == stop.site
    desk.open("b")
    assert isinstance(desk.run(PROMPT, 2, "b"), Finished)
    assert not looks
    mover.finish()
    until_idle(desk)
    assert isinstance(looks[0], Inspected)
    assert desk.session().residence.last_transfer.cause == "needed"


def test_letters_are_answered_in_their_order(desk: Desk) -> None:
    desk.run(PROMPT, 2)
    desk.swap_out()
    mover = held(desk)
    runs = post(desk, ask.Run(session="a", tokens=(5,), max_new_tokens=50, extend=True, ignore_eos=True))
    pausing = post(desk, ask.Pause(session="a"))
    assert not runs
    mover.finish()
    until_idle(desk)
    assert pausing[0].was_running
    assert isinstance(runs[0], Paused)


def test_a_session_that_is_leaving_is_called_back(desk: Desk) -> None:
    desk.stop_at(4)
    desk.run(PROMPT, 3)
    mover = held(desk)
    desk.engine.residency.swapping.swap_out(desk.session(), "host", "idleness")
    assert desk.describe().residency == "storing"
    assert isinstance(post(desk, ask.Resume(session="a", free=True))[0], Finished), (
        "at once, with the copies still under way"
    )
    mover.finish()
    until_idle(desk)
    desk.open("b")
    assert desk.outcome(desk.run(PROMPT, 3, "b"), "b") == desk.outcome(desk.run(PROMPT, 3, "a", free=True))


def test_a_new_prompt_does_not_wait_for_the_old_one(desk: Desk) -> None:
    desk.run(PROMPT, 1)
    desk.swap_out("a", "disk")
    held(desk)
    assert isinstance(post(desk, ask.Run(session="a", tokens=PROMPT, max_new_tokens=2))[0], Finished)
    assert desk.describe().residency == "resident"


@pytest.mark.parametrize("moment", ["storing", "loading"])
def test_a_session_closed_on_its_way_leaves_nothing(desk: Desk, moment: str) -> None:
    desk.stop_at(4)
    desk.run(PROMPT, 3)
    if moment == "loading":
        desk.swap_out()
    mover = held(desk)
    replies = post(desk, ask.SwapOut(session="a") if moment == "storing" else ask.Inspect(session="a"))
    assert isinstance(post(desk, ask.Close(session="a"))[0], Closed)
    assert isinstance(replies[0], Failed)
    desk.engine.check_invariants()
    mover.finish()
    assert nothing_left(desk)
    desk.engine.check_invariants()


def test_a_value_is_patched_from_a_session_that_is_away(desk: Desk) -> None:
    for name in "bc":
        desk.open(name)
        desk.stop_at(4, name=name)
        desk.run(tokens(40, seed=3) if name == "b" else PROMPT, 3, name)
    desk.stop_at(4)
    desk.run(PROMPT, 3)
    desk.edit(PatchFrom(session="b"))
    expected = desk.outcome(desk.resume(free=True))
    desk.swap_out("b", "disk")
    desk.edit(PatchFrom(session="b"), "c")
    assert desk.outcome(desk.resume("c", free=True), "c") == expected
    assert desk.session("b").residence.busy == 0


@pytest.mark.parametrize("asked", [ask.RevertEdits(session="a"), ask.Back(session="a", count=99, by="token")])
def test_the_end_of_a_queue_is_a_change_for_those_that_wait_for_room(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, asked: ask.Request
) -> None:
    """Its session may be evicted from then on: no job begins or ends that would say so."""
    desk.stop_at(4)
    desk.run(PROMPT, 3)
    desk.swap_out()
    desk.open("b")
    mover, residency, turns = held(desk), desk.engine.residency, desk.engine.turns
    replies, blocked, advance = post(desk, asked), list[Any](), turns.advance_next

    def advance_next() -> bool:
        if desk.session().residence.present and not replies:
            assert residency.find(desk.session("b"), 1)
            blocked.append(lambda before=residency.changes: residency.changes == before)
            assert blocked[0](), "the queue of the other is a reason to wait"
        return advance()

    monkeypatch.setattr(turns, "advance_next", advance_next)
    advanced, advance_all = list[int](), residency.swapping.advance_all
    monkeypatch.setattr(residency.swapping, "advance_all", lambda: advanced.append(len(blocked)) or advance_all())
    mover.finish()
    until_idle(desk)
    assert replies
    assert len(blocked) == 1
    assert not blocked[0]()
    assert advanced[-1] == 1, "moves that wait for room look again too"


# --- in turn ----------------------------------------------------------------------------------------------------------


NAMES = "abcde"
ROUNDS = 4


def served(desk: Desk, length: int, fresh: bool) -> list[int]:
    """Have every session ask again once it is answered; return how many of the others' answers each request waited for.
    With `fresh` the session last opened begins in the middle of the others' returns."""
    asked: dict[str, tuple[int, list[Any]]] = {}
    waits: list[int] = []
    left, answered = dict.fromkeys(NAMES, ROUNDS), 0

    def turn(name: str, **prompt: Any) -> None:
        asked[name] = (answered, [])
        desk.post(ask.Run(session=name, max_new_tokens=2, ignore_eos=True, **prompt), asked[name][1])

    for number, name in enumerate(NAMES):
        if not fresh or name != NAMES[-1]:
            desk.run(tokens(length, seed=number), 2, name)
            turn(name, tokens=(5,), extend=True)
    while asked:
        if not desk.engine.tick():
            assert desk.engine.tiers.moving, "idle, and somebody is not answered"
            desk.engine.mailbox.wait(0.1)
        for name, (since, replies) in list(asked.items()):
            if replies:
                assert isinstance(replies[0], Finished)
                del asked[name]
                waits.append(answered - since)
                answered, left[name] = answered + 1, left[name] - 1
                if left[name]:
                    turn(name, tokens=(5,), extend=True)
        if fresh and answered == 4 and left[NAMES[-1]] == ROUNDS and NAMES[-1] not in asked:
            turn(NAMES[-1], tokens=tokens(length, seed=4))
    return waits


@pytest.mark.parametrize("fresh", [False, True], ids=["all come back", "one is new"])
@pytest.mark.parametrize(("pages", "length"), [(7, 33), (9, 44)])
def test_nobody_is_overtaken_twice_by_each_of_the_others(fresh: bool, pages: int, length: int) -> None:
    """Nor is anybody refused where all that are on the device want a page more: who asked last gives way."""
    desk = small(pages)
    for name in NAMES:
        desk.open(name)
    assert max(served(desk, length, fresh)) <= 2 * (len(NAMES) - 1)
    desk.close_all()
    assert nothing_left(desk)


def test_a_prefetch_without_room_is_in_line_once_a_request_needs_it() -> None:
    here = Residence(state="loading", moving=Swap(goal=None, cause="prefetch", items=[], waits_for_room=True))
    assert not here.in_line
    here.ask()
    assert here.in_line
    assert here.asked_since == here.asked


@pytest.mark.timeout(60)
def test_forks_that_wait_for_room_leave_the_run_at_work_its_turns() -> None:
    """Leaving and coming back costs a fork nothing, because the others keep its bytes on the device."""
    desk = small(9)
    desk.open("a")
    desk.run(tokens(PAGE_POSITIONS), 1, "a")
    waiting = [desk.fork(name) for name in "bc"]
    desk.open("at work")
    begun = start(desk, "at work", tokens(5 * PAGE_POSITIONS), 20)
    for _ in range(4):
        desk.engine.tick()
    replies: list[list[Any]] = [[] for _ in waiting]
    for name, heard in zip(waiting, replies, strict=True):
        run = ask.Run(session=name, tokens=tokens(3 * PAGE_POSITIONS), max_new_tokens=2, ignore_eos=True, extend=True)
        desk.post(run, heard)
    until(desk, begun, *replies)
    assert all(isinstance(heard[0], Finished) for heard in (begun, *replies))


# --- the seconds of copies --------------------------------------------------------------------------------------------


QUEUED = 100.0  # seconds that the batches stay in the queue


@pytest.mark.parametrize("way", ["out", "in"])
def test_a_moves_copies_take_less_than_the_move_that_was_queued(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    now, monotonic = [0.0], residence.time.monotonic
    monkeypatch.setattr(residence.time, "monotonic", lambda: monotonic() + now[0])
    desk.stop_at(4)
    desk.run(PROMPT, 3)
    if way == "in":
        desk.swap_out()
    holding = held(desk)
    post(desk, ask.SwapOut(session="a") if way == "out" else ask.SwapIn(session="a"))
    now[0] = QUEUED
    holding.finish()
    until_idle(desk)
    moved = desk.session().residence.last_transfer
    assert (moved.direction, moved.bytes_moved > 0) == (way, True)
    assert moved.seconds >= QUEUED > moved.copy_seconds > 0


def test_what_was_not_copied_took_no_time_of_the_mover(desk: Desk) -> None:
    desk.run(PROMPT, 2)
    desk.swap_out()
    desk.swap_in()
    desk.swap_out()
    moved = desk.session().residence.last_transfer
    assert (moved.bytes_moved, moved.copy_seconds) == (0, None)


def test_on_a_gpu_the_wait_for_computing_is_no_copying(monkeypatch: pytest.MonkeyPatch) -> None:
    """The events of the copy's time lie behind the one that the stream waits for."""
    gpu = Gpu(random.Random(0))
    instead_of_cuda(monkeypatch, gpu)
    side, order = gpu.new_stream(), list[str]()
    ready = torch.cuda.Event()
    gpu.current.steps.append(Step(lambda: order.append("computed")))
    ready.record(gpu.current)
    timed = mover.timed_on

    def noted(stream: object) -> object:
        gpu.streams[-1].steps.append(Step(lambda: order.append("timed")))
        return timed(stream)

    monkeypatch.setattr(mover, "timed_on", noted)
    source, target = (Span(memory=torch.full((8,), n, dtype=torch.uint8), start=0, nbytes=8) for n in (1, 0))
    moved = perform(MoverBatch(moves=(Copy(source=source, target=target),), urgent=True, ready=(ready,)), side)
    assert (order, moved.error, moved.seconds) == (["computed", "timed", "timed"], None, 1e-3)


# --- memory that is given back ----------------------------------------------------------------------------------------


def test_the_heap_goes_back_once_after_sessions_have_left_by_idleness(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[Any] = []
    monkeypatch.setattr(eviction, "return_freed", given.append)
    desk, clock = made(idle_swap_seconds=5.0), Clock()
    idle = desk.engine.residency.eviction
    monkeypatch.setattr(idle, "_clock", clock)
    desk.open()
    desk.run(PROMPT, 2)
    idle.attend()
    clock.now += 6.0
    idle.attend()
    while desk.describe().residency != "host":
        if not desk.engine.tick():
            desk.engine.mailbox.wait(0.05)
    idle.attend()
    assert given == []
    clock.now += eviction.GIVE_BACK_SECONDS
    idle.attend()
    idle.attend()
    assert given == [HOST]
    until_idle(desk)
