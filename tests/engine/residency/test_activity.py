"""Notes of notebooks on their activity: the sessions that leave first because of them, and those prefetched."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
import torch

from djinn_jupyter.engine.loop.mailbox import Holder
from djinn_jupyter.engine.residency.activity import PATIENCE, TIMES_SOONER, IdleTimes, Prefetching
from djinn_jupyter.engine.residency.priority import Claim
from djinn_jupyter.errors import UnknownSession
from djinn_jupyter.wire import requests as ask
from djinn_jupyter.wire.nouns import Activity, PrefetchStatistics
from djinn_jupyter.wire.replies import Inspected, Noted
from tests.engine.desk import Desk
from tests.engine.residency.evicting import PROMPT, Clock, held, post, until_idle


@pytest.fixture
def desk(shared: Desk) -> Iterator[Desk]:
    """An engine that has learned nothing, with a session `a` that is stopped."""
    shared.open()
    shared.stop_at(4)
    shared.run(PROMPT, 3)
    yield from anew(shared)


@pytest.fixture
def small(tight: Desk) -> Iterator[Desk]:
    yield from anew(tight)


def anew(desk: Desk) -> Iterator[Desk]:
    activity = desk.engine.residency.activity
    activity._idle_times, activity._prefetching, activity._clock = IdleTimes(), Prefetching(), time.monotonic
    yield desk
    desk.engine.tiers.mover = desk.engine.mover
    desk.close_all()


def note(desk: Desk, activity: Activity, name: str = "a") -> None:
    assert isinstance(desk.ask(ask.Note(session=name, activity=activity)), Noted)


def settle(desk: Desk) -> None:
    """Tick until neither a job nor a copy is under way."""
    while desk.engine.tick() or desk.engine.tiers.moving:
        desk.engine.mailbox.wait(0.05)
    desk.settle()


def prefetches(desk: Desk) -> PrefetchStatistics:
    return desk.engine.residency.activity.statistics()


def counted(desk: Desk) -> tuple[int, int, int, int]:
    found = prefetches(desk)
    return found.begun, found.hits, found.late, found.wasted


@pytest.mark.parametrize("activity", ["focused", "expected"])
def test_a_session_is_back_before_it_is_asked_for(desk: Desk, activity: Activity) -> None:
    before = desk.value()
    desk.swap_out()
    note(desk, activity)
    settle(desk)
    assert desk.session().residence.state == "resident"
    assert desk.session().residence.last_transfer.cause == "prefetch"
    assert counted(desk) == (1, 0, 0, 0)
    assert torch.equal(desk.value(), before)
    assert counted(desk) == (1, 1, 0, 0)
    assert desk.engine.reading.statistics.prefetches == prefetches(desk)


def test_who_asks_while_it_is_on_its_way_waits_for_the_rest_of_it(desk: Desk) -> None:
    desk.swap_out()
    mover = held(desk)
    note(desk, "focused")
    looks = post(desk, ask.Inspect(session="a"))
    assert not looks
    assert len(mover.batches) == 1  # not fetched a second time
    mover.finish()
    until_idle(desk)
    assert isinstance(looks[0], Inspected)
    assert counted(desk) == (1, 0, 1, 0)


@pytest.mark.parametrize("activity", ["busy", "idle", "blurred", "gone"])
def test_other_notes_bring_nobody_back(desk: Desk, activity: Activity) -> None:
    desk.swap_out()
    note(desk, activity)
    settle(desk)
    assert desk.session().residence.state == "host"
    assert counted(desk) == (0, 0, 0, 0)


def test_a_session_that_is_leaving_is_called_back(desk: Desk) -> None:
    mover = held(desk)
    desk.engine.residency.swapping.swap_out(desk.session(), "host", "idleness")
    assert desk.session().residence.state == "storing"
    note(desk, "focused")
    assert desk.session().residence.state == "resident"
    mover.finish()
    until_idle(desk)
    assert desk.session().residence.state == "resident"


def test_a_prefetch_that_fails_hurts_nobody(desk: Desk) -> None:
    before = desk.value()
    desk.swap_out()
    mover = held(desk)
    note(desk, "focused")
    mover.go_on(fail=True)
    until_idle(desk)
    assert desk.session().residence.state == "host"
    assert counted(desk) == (1, 0, 0, 1)
    desk.engine.tiers.mover = desk.engine.mover
    assert torch.equal(desk.value(), before)


def test_what_is_fetched_and_not_used_is_wasted(desk: Desk) -> None:
    clock = desk.engine.residency.activity._clock = Clock()
    desk.swap_out()
    note(desk, "focused")
    settle(desk)
    clock.now += PATIENCE + 1.0
    note(desk, "blurred")
    note(desk, "focused")
    assert counted(desk) == (1, 0, 0, 1)


def test_glances_teach_to_distrust_the_focus(desk: Desk) -> None:
    clock = desk.engine.residency.activity._clock = Clock()
    before = prefetches(desk).trust_in_focus
    for _ in range(30):
        note(desk, "focused")
        clock.now += PATIENCE + 1.0
        note(desk, "blurred")
    assert prefetches(desk).trust_in_focus < before / 2


def test_a_note_to_nobody_is_refused(desk: Desk) -> None:
    with pytest.raises(UnknownSession, match="nobody"):
        note(desk, "focused", "nobody")


def test_a_note_is_taken_while_others_look(desk: Desk) -> None:
    """A note waits for nothing, and does not count as a use of the session."""
    replies: list[object] = []
    desk.post(ask.Inspect(session="a", site="resid_post.2"), [])
    desk.engine.tick()
    desk.post(ask.Note(session="a", activity="expected"), replies)
    desk.engine.tick()
    assert replies
    settle(desk)
    version = desk.session().residence.version
    note(desk, "idle")
    assert desk.session().residence.version == version


def away(desk: Desk) -> set[str]:
    return {name for name, s in desk.engine.sessions.items() if s.residence.state in ("host", "disk")}


def fill(desk: Desk, *names: str) -> None:
    for name in names:
        desk.open(name)
        desk.run(PROMPT * 2, 1, name)


def test_under_pressure_the_session_of_a_kernel_that_is_gone_leaves_first(small: Desk) -> None:
    fill(small, "a")
    small.engine.sessions["a"].holder = "other"
    fill(small, "b")
    small.engine.depart(Holder(name="tester", user="tester"))
    until_idle(small)
    assert small.engine.residency.activity.claim(small.session("b")) is Claim.DETACHED
    fill(small, "c")
    assert away(small) == {"b"}


def test_under_pressure_the_session_that_a_cell_uses_leaves_last(small: Desk) -> None:
    fill(small, "a", "b")
    note(small, "expected", "a")
    fill(small, "c")
    assert away(small) == {"b"}


def test_under_pressure_who_has_the_focus_stays_for_those_without_it(small: Desk) -> None:
    fill(small, "a", "b")
    note(small, "focused", "a")
    fill(small, "c")
    assert away(small) == {"b"}, "used after a, and not in view"


def test_a_focus_that_nobody_uses_ends_behind_those_that_rest_for_less(small: Desk) -> None:
    clock = small.engine.residency.activity._clock = Clock()
    fill(small, "a")
    note(small, "focused", "a")
    clock.now += TIMES_SOONER * 100.0
    fill(small, "b")
    clock.now += 99.0
    fill(small, "c")
    assert away(small) == {"a"}


def test_who_is_in_use_does_not_leave_for_a_prefetch(small: Desk) -> None:
    fill(small, "a", "b", "c")
    gone = away(small)
    assert len(gone) == 1
    for name in {"a", "b", "c"} - gone:
        note(small, "expected", name)
    note(small, "focused", *gone)
    settle(small)
    assert away(small) == gone
    assert counted(small) == (0, 0, 0, 0)


def test_a_prefetch_sends_away_who_rests_for_long(small: Desk) -> None:
    clock = small.engine.residency.activity._clock = Clock()
    fill(small, "a", "b")
    clock.now += 5000.0
    fill(small, "c")
    assert away(small) == {"a"}
    note(small, "focused", "a")
    settle(small)
    assert away(small) == {"b"}
    assert counted(small)[0] == 1
    small.run((5,), 1, "a", extend=True)
    assert counted(small)[1] == 1
