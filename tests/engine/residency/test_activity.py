"""Notes of notebooks on their activity: sessions that leave first because of them, and prefetching, which adds up."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from djinn_jupyter.engine.loop.mailbox import Holder
from djinn_jupyter.engine.residency.activity import PATIENCE, IdleTimes, Prefetching
from djinn_jupyter.engine.residency.priority import Claim, Signals, claim_of
from djinn_jupyter.wire import requests as ask
from djinn_jupyter.wire.nouns import Activity, PrefetchStatistics
from djinn_jupyter.wire.replies import Inspected, Noted
from tests.engine.desk import Desk
from tests.engine.residency.evicting import PROMPT, held, post, until_idle


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
    for other in ("busy", "idle", "blurred", "gone"):
        note(desk, other)
    settle(desk)
    assert (desk.session().residence.state, counted(desk)) == ("host", (0, 0, 0, 0)), "these bring nobody back"
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
    small.engine.lose_holder(Holder(name="tester", user="tester"))
    until_idle(small)
    assert small.engine.residency.activity.claim(small.session("b")) is Claim.DETACHED
    fill(small, "c")
    assert away(small) == {"b"}


def test_under_pressure_who_has_the_focus_stays_for_those_without_it(small: Desk) -> None:
    fill(small, "a", "b")
    note(small, "focused", "a")
    fill(small, "c")
    assert away(small) == {"b"}, "used after a, and not in view"


# --- prefetching ------------------------------------------------------------------------------------------------------


QUICK = settings(max_examples=40, deadline=None)
LETTERS = st.sampled_from("abc")
SIGNALS = st.sampled_from(["focused", "expected"])


def test_a_focus_that_never_comes_true_is_not_trusted() -> None:
    prefetching = Prefetching()
    for n in range(200):
        prefetching.signalled("a", "focused", n * 2 * PATIENCE)
    assert prefetching.trust_in_focus < 0.05


def test_a_focus_that_always_comes_true_is_trusted() -> None:
    prefetching = Prefetching()
    for n in range(200):
        prefetching.signalled("a", "focused", n * 10.0)
        prefetching.used("a", n * 10.0 + 3.0, present=True)
    assert prefetching.trust_in_focus > 0.95


class Betting(RuleBasedStateMachine):
    """Signals, prefetches, uses and departures in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.prefetching, self.now = Prefetching(), 0.0
        self.there: set[str] = set()

    @rule(seconds=st.floats(0.0, 2 * PATIENCE))
    def wait(self, seconds: float) -> None:
        self.now += seconds

    @rule(name=LETTERS, signal=SIGNALS)
    def signal(self, name: str, signal: str) -> None:
        self.prefetching.signalled(name, signal, self.now)  # type: ignore[arg-type]
        if name not in self.there:
            self.prefetching.began(name, self.now)
            self.there.add(name)

    @rule(name=LETTERS, present=st.booleans())
    def use(self, name: str, present: bool) -> None:
        self.prefetching.used(name, self.now, present=present)
        self.there.add(name)

    @rule(name=LETTERS)
    def leave(self, name: str) -> None:
        self.prefetching.left(name)
        self.there.discard(name)

    @invariant()
    def the_books_add_up(self) -> None:
        counts = self.prefetching.counts
        assert 0 <= counts.begun - counts.hits - counts.late - counts.wasted <= 3
        assert 0.0 < self.prefetching.trust_in_focus < 1.0

    def teardown(self) -> None:
        self.prefetching.expire(self.now + 2 * PATIENCE)
        counts = self.prefetching.counts
        assert counts.begun == counts.hits + counts.late + counts.wasted


TestBetting = Betting.TestCase
TestBetting.settings = settings(QUICK, stateful_step_count=20)


@pytest.mark.parametrize(
    ("state", "held", "activities", "claim"),
    [
        ("running", False, ("gone",), Claim.RUNNING),
        ("paused", False, (), Claim.DETACHED),
        ("paused", True, ("gone",), Claim.DETACHED),
        ("idle", True, ("gone", "focused"), Claim.IDLE),
        ("idle", True, ("expected",), Claim.STEPPING),
        ("paused", True, ("expected", "busy", "idle"), Claim.PAUSED),
        ("paused", True, ("busy",), Claim.PAUSED),
        ("idle", True, (), Claim.IDLE),
        ("paused", True, ("focused", "blurred"), Claim.PAUSED),
    ],
)
def test_the_claim_of_a_session(state: str, held: bool, activities: tuple[str, ...], claim: Claim) -> None:
    signals = Signals()
    for activity in activities:
        signals = signals.noted(activity)  # type: ignore[arg-type]
    assert claim_of(state, held=held, signals=signals) is claim  # type: ignore[arg-type]


def test_focus_stays_known_while_other_things_are_noted() -> None:
    signals = Signals().noted("focused").noted("expected").noted("idle")
    assert signals == Signals(focused=True)
    assert Signals().focused is None
