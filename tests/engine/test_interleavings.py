"""Eight clients who ask whatever they like of the same few sessions, in any order, and a bystander beside them."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any, get_args

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from djinn_jupyter.engine.mailbox import Holder
from djinn_jupyter.wire import requests as ask
from djinn_jupyter.wire.replies import Failed
from tests.engine.crowd import Crowd, is_refusal
from tests.engine.desk import desk_of
from tests.engine.test_any_request import crosses, made
from tests.wire import values

CLIENTS = [Holder(name=f"kernel {number}", user="tester") for number in range(8)]
STATES = {"running": "running", "away": "away", "a": "stopped", "other": "stopped", "nobody": "missing"}
KINDS = st.sampled_from(get_args(ask.Request))
STEPS = st.lists(
    st.tuples(
        st.sampled_from(CLIENTS),
        KINDS,
        st.sampled_from(["ordinary", "ordinary", "extreme", "wrong"]),
        st.integers(0, 10**6),
        st.sampled_from(sorted(STATES)),
        st.integers(0, 3),
    ),
    min_size=1,
    max_size=25,
)
SLOW = settings(max_examples=1000, deadline=None, suppress_health_check=list(HealthCheck))
FEW = settings(SLOW, max_examples=40)


@pytest.fixture(scope="module")
def crowd() -> Iterator[Crowd]:
    desk = desk_of("llama")
    yield Crowd.around(desk)
    desk.close_all()


def _interleave(crowd: Crowd, steps: list[tuple[Any, ...]]) -> None:
    engine = crowd.desk.engine
    for name, state in STATES.items():
        crowd.bring(name, state)  # type: ignore[arg-type]
    asked: list[tuple[Any, list[Any]]] = []
    for holder, kind, quality, choice, name, ticks in steps:
        every = values.requests(kind, quality)
        request = made(kind, every[choice % len(every)], name)
        if request is None or not crosses(request):  # what no client can send is tried one by one, in test_any_request
            continue
        asked.append((request, []))
        engine.submit(request, holder, asked[-1][1].append)
        for _ in range(ticks):
            engine.tick()
    _await(crowd, asked)
    crowd.goes_on()
    for request, replies in asked:
        assert len(replies) == 1, request
        if isinstance(replies[0], Failed):
            assert is_refusal(replies[0]), (request, replies[0])
    engine.check_books(contents=True)
    assert engine.faults.count == 0, engine.faults.last
    crowd.alone()


def _await(crowd: Crowd, asked: list[tuple[Any, list[Any]]]) -> None:
    """Runs that would take long are paused."""
    engine, deadline = crowd.desk.engine, time.monotonic() + 60.0
    while not all(replies for _, replies in asked) and time.monotonic() < deadline:
        if not engine.tick():
            engine.mailbox.wait(0.002)
        for session in engine.sessions.values():
            session.pause_requested = session.pause_requested or session.state == "running"


@FEW
@given(steps=STEPS)
def test_eight_clients_ask_anything_and_a_bystander_goes_on_bit_for_bit(
    crowd: Crowd, steps: list[tuple[Any, ...]]
) -> None:
    _interleave(crowd, steps)


@pytest.mark.slow
@SLOW
@given(steps=STEPS)
def test_eight_clients_ask_anything_for_long(crowd: Crowd, steps: list[tuple[Any, ...]]) -> None:
    _interleave(crowd, steps)
