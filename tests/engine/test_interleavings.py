"""Eight clients that send any requests to the same few sessions, in any order, and a bystander beside them."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings

from djinn_jupyter.engine.loop.mailbox import Holder
from djinn_jupyter.wire.replies import Failed
from tests.engine.cases import CLIENTS, SESSIONS, STEPS, Step
from tests.engine.crowd import Crowd, is_refusal
from tests.engine.desk import desk_of

HOLDERS = [Holder(name=f"kernel {number}", user="tester") for number in range(CLIENTS)]
SLOW = settings(max_examples=1000, deadline=None, suppress_health_check=list(HealthCheck))
FEW = settings(SLOW, max_examples=20)


@pytest.fixture(scope="module")
def crowd() -> Iterator[Crowd]:
    desk = desk_of("llama")
    yield Crowd.around(desk)
    desk.close_all()


def _interleave(crowd: Crowd, steps: list[Step]) -> None:
    engine = crowd.desk.engine
    for name, state in SESSIONS.items():
        crowd.bring(name, state)
    asked: list[tuple[Any, list[Any]]] = []
    for client, case, ticks in steps:
        if case.request is None:
            continue
        asked.append((case.request, []))
        engine.submit(case.request, HOLDERS[client], asked[-1][1].append)
        for _ in range(ticks):
            engine.tick()
    _await(crowd, asked)
    crowd.goes_on()
    for request, replies in asked:
        assert len(replies) == 1, request
        if isinstance(replies[0], Failed):
            assert is_refusal(replies[0]), (request, replies[0])
    engine.check_invariants(contents=True)
    assert engine.faults.count == 0, engine.faults.last
    crowd.alone()


def _await(crowd: Crowd, asked: list[tuple[Any, list[Any]]]) -> None:
    """Wait for the replies; runs that would take long are paused."""
    engine, deadline = crowd.desk.engine, time.monotonic() + 60.0
    while not all(replies for _, replies in asked) and time.monotonic() < deadline:
        if not engine.tick():
            engine.mailbox.wait(0.002)
        for session in engine.sessions.values():
            session.pause_requested = session.pause_requested or session.state == "running"


@FEW
@given(steps=STEPS)
def test_eight_clients_ask_anything_and_a_bystander_goes_on_bit_for_bit(crowd: Crowd, steps: list[Step]) -> None:
    _interleave(crowd, steps)


@pytest.mark.slow
@SLOW
@given(steps=STEPS)
def test_eight_clients_ask_anything_for_long(crowd: Crowd, steps: list[Step]) -> None:
    _interleave(crowd, steps)
