"""Eviction: properties of the order of candidates and of the choice of victims, for any candidates."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from djinn_jupyter.engine.residency.activity import TIMES_SOONER, IdleTimes
from djinn_jupyter.engine.residency.eviction_policy import Candidate, latest_return_first, may_leave_for, victims
from djinn_jupyter.engine.residency.priority import Claim

QUICK = settings(max_examples=40, deadline=None)
SECONDS = st.integers(0, 10**9).map(lambda milliseconds: milliseconds / 1000)
SIZES = st.integers(0, 2**40)


@st.composite
def candidates(draw: st.DrawFn) -> list[Candidate]:
    names = draw(st.lists(st.text("abcdef", min_size=1, max_size=4), unique=True, max_size=7))
    return [draw(_candidate(name)) for name in names]


def _candidate(name: str) -> st.SearchStrategy[Candidate]:
    return st.builds(
        Candidate,
        session=st.just(name),
        claim=st.sampled_from(Claim),
        frees_bytes=SIZES,
        rested_seconds=SECONDS,
        remaining_seconds=SECONDS,
    )


@QUICK
@given(candidates())
def test_the_order_has_each_once_who_does_not_run_and_frees_something(found: list[Candidate]) -> None:
    ordered = latest_return_first(found)
    assert len({c.session for c in ordered}) == len(ordered)
    assert set(ordered) == {c for c in found if c.claim is not Claim.RUNNING and c.frees_bytes > 0}


@QUICK
@given(candidates(), st.randoms())
def test_the_order_does_not_depend_on_how_the_candidates_came(found: list[Candidate], random: object) -> None:
    shuffled = list(found)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    assert latest_return_first(shuffled) == latest_return_first(found)


@QUICK
@given(candidates())
def test_the_detached_leave_first_the_busy_last_and_else_who_comes_back_last(found: list[Candidate]) -> None:
    ordered = latest_return_first(found)
    ranks = [(c.claim is not Claim.DETACHED, c.claim is Claim.STEPPING, -c.remaining_seconds) for c in ordered]
    assert ranks == sorted(ranks)


@QUICK
@given(_candidate("a"), st.floats(1.0, 1e6))
def test_who_is_expected_to_rest_for_longer_leaves_before_a_twin(one: Candidate, more: float) -> None:
    one = replace(one, frees_bytes=max(one.frees_bytes, 1), claim=Claim.IDLE)
    longer = replace(one, session="b", remaining_seconds=one.remaining_seconds + more)
    assert latest_return_first([one, longer]) == [longer, one]


@QUICK
@given(candidates(), SIZES)
def test_victims_are_enough_and_none_of_them_is_superfluous(found: list[Candidate], need: int) -> None:
    ordered = latest_return_first(found)
    chosen = victims(ordered, need)
    freed = sum(c.frees_bytes for c in chosen)
    assert [c for c in ordered if c in chosen] == chosen
    if sum(c.frees_bytes for c in ordered) < need:
        assert chosen == ordered
        return
    assert freed >= need
    assert all(freed - c.frees_bytes < need for c in chosen)


@QUICK
@given(candidates(), SIZES, SECONDS)
def test_for_a_prefetch_only_those_leave_that_come_back_later(found: list[Candidate], need: int, due_in: float) -> None:
    chosen = victims(latest_return_first(found), need)
    later = all(c.remaining_seconds > due_in for c in chosen)
    busy = any(c.claim is Claim.STEPPING for c in chosen)
    enough = sum(c.frees_bytes for c in chosen) >= need
    assert may_leave_for(due_in, latest_return_first(found), need) == (later and enough and not busy)


@QUICK
@given(candidates())
def test_nobody_leaves_where_nothing_is_needed(found: list[Candidate]) -> None:
    assert victims(latest_return_first(found), 0) == []


def test_who_acts_does_not_rest_and_who_is_closed_is_forgotten() -> None:
    rests = IdleTimes()
    assert (rests.lasted("a", 9.0), rests.remaining("a", 9.0)) == (0.0, 0.0)
    rests.rests("a", 10.0)
    assert rests.lasted("a", 12.0) == 2.0
    rests.forget("a")
    assert rests.lasted("a", 13.0) == 0.0


@QUICK
@given(SECONDS, SECONDS)
def test_who_said_nothing_is_expected_to_rest_as_long_again_and_less_with_the_focus(since: float, more: float) -> None:
    rests = IdleTimes()
    rests.rests("a", 0.0)
    assert rests.remaining("a", since) == since
    assert rests.remaining("a", since, focused=True) == since / TIMES_SOONER
    rests.announce("a", since + more)
    for focused in (None, False, True):
        assert rests.remaining("a", since, focused=focused) == pytest.approx(more, abs=1e-6)
