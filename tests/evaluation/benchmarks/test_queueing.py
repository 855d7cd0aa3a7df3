"""The network of queues against the closed form of one server that looks after machines, and by its own bounds."""

from __future__ import annotations

from math import factorial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from djinn_evaluation.benchmarks.people import load_of


@pytest.mark.parametrize("users", [1, 2, 7, 30])
@pytest.mark.parametrize(("thinking", "cost"), [(2.0, 0.1), (0.5, 1.0)])
def test_one_server_is_the_machine_repairman(users: int, thinking: float, cost: float) -> None:
    ratio = cost / thinking
    idle = 1 / sum(factorial(users) / factorial(users - k) * ratio**k for k in range(users + 1))
    assert load_of(users, thinking, {"server": cost}).per_second == pytest.approx((1 - idle) / cost, rel=1e-9)


@given(
    users=st.integers(1, 200),
    thinking=st.floats(0.01, 100),
    demands=st.dictionaries(st.sampled_from("abcd"), st.floats(1e-4, 10), min_size=1),
)
def test_no_resource_is_more_than_busy_and_no_user_waits_for_less_than_the_work(
    users: int, thinking: float, demands: dict[str, float]
) -> None:
    load = load_of(users, thinking, demands)
    assert all(part <= 1 + 1e-9 for part in load.busy.values())
    assert load.response_seconds >= sum(demands.values()) * (1 - 1e-9)
    assert load.per_second * (thinking + load.response_seconds) == pytest.approx(users, rel=1e-6)
    assert demands[load.busiest] == max(demands.values())
