"""Who waits for room is served in the order of asking: no session is overtaken again and again by others' returns."""

from __future__ import annotations

from typing import Any

import pytest

from djinn_jupyter.engine.session.residence import Residence, Swap
from djinn_jupyter.wire import requests as ask
from djinn_jupyter.wire.replies import Finished
from tests.engine.desk import PAGE as PAGE_POSITIONS
from tests.engine.desk import Desk, tokens
from tests.engine.residency.evicting import nothing_left
from tests.engine.residency.test_pressure import small, start, until

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
@pytest.mark.parametrize(("pages", "length"), [(7, 33), (10, 33), (10, 40), (9, 44)])
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
