"""Prefetching: how often a focus came true, and an accounting that adds up."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from djinn_jupyter.engine.residency.activity import PATIENCE, Prefetching
from djinn_jupyter.engine.residency.priority import Claim, Signals, claim_of

QUICK = settings(max_examples=40, deadline=None)
NAMES = st.sampled_from("abc")
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

    @rule(name=NAMES, signal=SIGNALS)
    def signal(self, name: str, signal: str) -> None:
        self.prefetching.signalled(name, signal, self.now)  # type: ignore[arg-type]
        if name not in self.there:
            self.prefetching.began(name, self.now)
            self.there.add(name)

    @rule(name=NAMES, present=st.booleans())
    def use(self, name: str, present: bool) -> None:
        self.prefetching.used(name, self.now, present=present)
        self.there.add(name)

    @rule(name=NAMES)
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
