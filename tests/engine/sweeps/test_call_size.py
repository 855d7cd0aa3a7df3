"""The most rows of each call: those of an earlier sweep in turn, and behind them what calls teach."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from djinn_jupyter.engine.passes.wavefront import FIRST_ROWS, SLOW_CALLS, TOO_SLOW, CallPlan, CallSize

PLANS = st.lists(st.tuples(st.integers(1, 4), st.integers(1, 3)), max_size=5)


@given(PLANS, st.lists(st.integers(1, 4), max_size=5))
def test_a_plan_is_followed_and_what_is_learned_comes_behind_it(
    plan: list[tuple[int, int]], learned: list[int]
) -> None:
    rows = [rows for rows, calls in plan for _ in range(calls)]
    followed = CallPlan(plan)
    assert [followed.next(9) for _ in rows] == rows
    assert [followed.next(one) for one in learned] == learned
    again = CallPlan(followed.made)
    assert [again.next(9) for _ in (*rows, *learned)] == [*rows, *learned]
    assert again.made == followed.made


def test_calls_that_take_too_long_here_end_the_plan() -> None:
    size = CallSize(plan=CallPlan([(500, 99)]))
    for seconds in (TOO_SLOW * 2, TOO_SLOW * 0.9, *[TOO_SLOW * 2] * SLOW_CALLS):
        assert size.of_next() == 500
        size.note(500, seconds)
    assert size.of_next() == 50 < FIRST_ROWS
