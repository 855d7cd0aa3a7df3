"""Sessions that say when they will be used again: they leave at once for a long rest, stay where others would be wanted
later, and are back in time, bit for bit."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator

import pytest
import torch

from djinn_jupyter.engine.process.daemon import WATCHFUL_WAIT_SECONDS, longest_wait
from djinn_jupyter.engine.residency.activity import (
    AGAIN_SECONDS,
    LATE_SECONDS,
    MARGIN_SECONDS,
    IdleTimes,
    Prefetching,
    Returns,
)
from djinn_jupyter.engine.residency.swapping import Bandwidth
from djinn_jupyter.errors import IllegalMove, SlabFull, UsageError
from djinn_jupyter.wire import requests as ask
from tests.engine.desk import Desk
from tests.engine.residency.evicting import PROMPT, Clock, held, room_for_two, until_idle


@pytest.fixture
def clock(tight: Desk) -> Clock:
    return Clock()


@pytest.fixture
def desk(tight: Desk, clock: Clock) -> Iterator[Desk]:
    activity, eviction = tight.engine.residency.activity, tight.engine.residency.eviction
    activity._idle_times, activity._prefetching, activity._returns = IdleTimes(), Prefetching(), Returns()
    activity._bandwidth = Bandwidth()  # what moves have taken decides when a session sets out
    activity._clock = clock
    yield tight
    activity._clock = eviction._clock = time.monotonic
    activity._prefetches = True
    tight.engine.tiers.mover = tight.engine.mover
    tight.close_all()


def fill(desk: Desk, *names: str) -> None:
    for name in names:
        desk.open(name)
        desk.run(PROMPT * 2, 1, name)


def rest(desk: Desk, name: str, seconds: float) -> bool:
    return desk.ask(ask.Rest(session=name, expected_seconds=seconds)).session.residency != "resident"


def settle(desk: Desk) -> None:
    while desk.engine.tick() or desk.engine.tiers.moving:
        desk.engine.mailbox.wait(0.05)
    desk.settle()


def away(desk: Desk) -> set[str]:
    return {name for name, s in desk.engine.sessions.items() if s.residence.state in ("host", "disk")}


def test_the_log_tells_a_rest_that_was_announced_from_idleness(desk: Desk, caplog: pytest.LogCaptureFixture) -> None:
    fill(desk, "a")
    with caplog.at_level("INFO"):
        assert rest(desk, "a", 300.0)
    assert "rest announced: session 'a', 300.000 s" in caplog.messages
    assert not any(said.startswith("idle detected") for said in caplog.messages)


def test_a_long_rest_begins_with_leaving_and_ends_with_being_back(desk: Desk, clock: Clock) -> None:
    fill(desk, "a")
    before = desk.logits("a")
    assert rest(desk, "a", 300.0)
    settle(desk)
    assert away(desk) == {"a"}
    assert desk.session("a").residence.last_transfer.cause == "idleness"
    clock.now += 300.0 - 2 * MARGIN_SECONDS
    settle(desk)
    assert away(desk) == {"a"}, "not before it has to set out"
    clock.now += 1.5 * MARGIN_SECONDS
    settle(desk)
    assert away(desk) == set()
    assert desk.session("a").residence.last_transfer.cause == "prefetch"
    desk.run((5,), 1, "a", extend=True)
    found = desk.engine.residency.statistics()
    assert (found.begun, found.hits) == (1, 1)
    desk.open("b")
    desk.run((*PROMPT * 2,), 1, "b")
    assert torch.equal(desk.logits("b"), before)
    desk.run((5,), 1, "b", extend=True)
    assert torch.equal(desk.logits("b"), desk.logits("a"))


def test_the_daemon_wakes_when_a_session_has_to_set_out(desk: Desk, clock: Clock) -> None:
    fill(desk, "a")
    rest(desk, "a", 0.5)
    assert longest_wait(desk.engine) == pytest.approx(0.5 - MARGIN_SECONDS)
    rest(desk, "a", 300.0)
    settle(desk)
    assert longest_wait(desk.engine) >= WATCHFUL_WAIT_SECONDS
    desk.run((5,), 1, "a", extend=True)
    assert desk.engine.due_in == math.inf, "it is back, earlier than it had said"


def test_a_short_rest_stays_and_is_written_through_so_that_it_can_leave_at_once(desk: Desk) -> None:
    fill(desk, "a")
    assert not rest(desk, "a", 20.0)
    settle(desk)
    assert (desk.describe("a").residency, desk.describe("a").dirty_bytes) == ("resident", 0)


def test_under_pressure_the_session_that_comes_back_last_leaves(desk: Desk, clock: Clock) -> None:
    fill(desk, "a", "b")
    rest(desk, "a", 1.0)
    rest(desk, "b", 50.0)
    fill(desk, "c")
    assert away(desk) == {"b"}


def test_two_options_turn_off_what_is_learned_and_what_is_fetched_ahead() -> None:
    desk = room_for_two(evict_by_last_use=True, no_prefetch=True)
    fill(desk, "a", "b")
    rest(desk, "a", 1.0)
    rest(desk, "b", 50.0)
    fill(desk, "c")
    assert away(desk) == {"a"}, "used longest ago, and back first"
    assert desk.engine.due_in == math.inf
    desk.close_all()


def test_idleness_spares_a_session_that_is_about_to_come(desk: Desk, clock: Clock) -> None:
    fill(desk, "a", "b")
    rest(desk, "a", 10.0)
    eviction = desk.engine.residency.eviction
    eviction._clock = lambda: time.monotonic() + 61.0
    settle(desk)
    assert away(desk) == {"b"}
    clock.now += 10.0 + LATE_SECONDS + 1.0
    settle(desk)
    assert away(desk) == {"a", "b"}, "it has not come, and counts as any other"


@pytest.mark.parametrize(("others", "back"), [(99.99, False), (200.0, True)])
def test_who_comes_back_sooner_does_not_leave_for_one_that_comes_back(
    desk: Desk, clock: Clock, others: float, back: bool
) -> None:
    fill(desk, "a")
    rest(desk, "a", 100.0)
    settle(desk)
    fill(desk, "b", "c")
    clock.now += 50.0
    for name in "bc":
        rest(desk, name, others - 50.0)
    settle(desk)
    clock.now += 49.95
    settle(desk)
    assert ("a" not in away(desk)) == back
    assert desk.engine.residency.statistics().begun == back


def test_while_a_request_waits_for_room_none_is_brought_back_ahead(desk: Desk, clock: Clock) -> None:
    fill(desk, "a", "b")
    rest(desk, "a", 100.0)
    settle(desk)
    desk.session("b").residence.want_room()
    clock.now += 99.95
    settle(desk)
    assert away(desk) == {"a"}
    desk.session("b").residence.note_room()
    clock.now += AGAIN_SECONDS
    settle(desk)
    assert away(desk) == set()


def test_no_session_in_use_leaves_for_one_that_comes_back_and_it_is_tried_again(desk: Desk, clock: Clock) -> None:
    fill(desk, "a")
    rest(desk, "a", 100.0)
    settle(desk)
    fill(desk, "b", "c")
    for name in "bc":
        desk.ask(ask.Note(session=name, activity="expected"))
    clock.now += 99.95
    settle(desk)
    assert away(desk) == {"a"}
    assert 0.0 < desk.engine.due_in < 1.0, "it is looked at again"
    desk.close("b")
    clock.now += AGAIN_SECONDS
    settle(desk)
    assert away(desk) == set()
    assert desk.engine.due_in == math.inf


def test_leaving_is_called_back_when_the_rest_is_over_before_the_copy(desk: Desk, clock: Clock) -> None:
    fill(desk, "a")
    mover = held(desk)
    rest(desk, "a", 100.0)
    assert desk.session("a").residence.state == "storing"
    clock.now += 99.95
    until_idle(desk)
    assert desk.session("a").residence.state == "resident"
    mover.finish()
    until_idle(desk)


def test_a_way_back_that_fails_is_not_tried_over_and_over(desk: Desk, clock: Clock) -> None:
    fill(desk, "a")
    rest(desk, "a", 100.0)
    settle(desk)
    tried: list[int] = []

    def refuse(items: object) -> None:
        tried.append(len(tried))
        raise SlabFull("No pages.")

    clock.now += 101.0  # late, and expected still
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(desk.engine.tiers, "load", refuse)
        for _ in range(9):
            desk.engine.tick()
    assert tried == [0]
    assert desk.engine.due_in == math.inf
    desk.run((5,), 1, "a", extend=True)


def test_a_session_that_was_looked_for_amid_a_long_rest_leaves_again_for_idleness(desk: Desk, clock: Clock) -> None:
    fill(desk, "a")
    rest(desk, "a", 1000.0)
    settle(desk)
    desk.ask(ask.Note(session="a", activity="focused"))
    settle(desk)
    assert away(desk) == set()
    desk.engine.residency.eviction._clock = lambda: time.monotonic() + 61.0
    settle(desk)
    assert away(desk) == {"a"}
    clock.now += 1000.0 - MARGIN_SECONDS / 2
    settle(desk)
    assert away(desk) == set()


def test_a_running_session_does_not_rest_and_a_rest_has_a_length(desk: Desk) -> None:
    desk.open("a")
    desk.post(ask.Run(session="a", tokens=PROMPT, max_new_tokens=4, ignore_eos=True), [])
    desk.engine.tick()
    with pytest.raises(IllegalMove, match="'a' is running"):
        rest(desk, "a", 5.0)
    until_idle(desk)
    for seconds in (-1.0, math.inf, math.nan):
        with pytest.raises(UsageError, match=r"^A rest lasts 0 to 31536000 seconds \(a year\)"):
            rest(desk, "a", seconds)
    desk.open("b")
    assert not rest(desk, "b", 1000.0), "it has run nothing"
