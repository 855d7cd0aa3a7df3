"""Faults of the ring that the flatline finds: no prefetch, copies in turns with computing, a copy made twice.

No chance decides whether a prefetched copy overlaps with computing (`long_layers`).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from djinn_evaluation.memory import Curve
from djinn_evaluation.validation.flatline import Bar, Flow, TimeSpan, judge
from djinn_jupyter.engine.memory.weights.streamed import BlockOrder
from djinn_jupyter.wire import requests as ask
from tests.device import DEVICE
from tests.engine.desk import Desk, tokens
from tests.engine.memory.weights.streaming import arrive, streamed, streamed_desk
from tests.evaluation.test_flatline import wanted

Patch = pytest.MonkeyPatch
PROMPT, RUNS, NEW = tokens(8), 2, 3
TURNS = "Copying and computing took turns: the next layer did not come while one was computed."
BYTES = "The passes moved other bytes than those that stream."


@pytest.fixture(scope="module")
def desk() -> Desk:
    return streamed_desk("llama")


@pytest.fixture
def long_layers(desk: Desk, monkeypatch: Patch) -> None:
    """On the CPU a copy begins once a layer is computed or once it is waited for, and a layer is computed until the
    copies have come."""
    copy_engine, under_way = streamed(desk).copy_engine, list[Any]()
    submit, wait, fetching = copy_engine.submit, copy_engine.wait, copy_engine.fetching

    def held(transfers: Any, after: Any, block: int | None = None) -> Any:
        arrival = submit(transfers, threading.Event() if DEVICE.type == "cpu" else after, block)
        under_way.append(arrival)
        return arrival

    def begin(arrival: Any) -> None:
        if DEVICE.type == "cpu":
            arrival.after.set()

    def begun_and_waited_for(arrival: Any) -> None:
        for other in under_way:  # they come in their order
            begin(other)
        wait(arrival)

    @contextmanager
    def between_layers() -> Iterator[None]:
        for arrival in under_way:
            begin(arrival)
        while under_way:
            arrival = under_way.pop()
            arrival.arrived.wait() if DEVICE.type == "cpu" else arrival.done.synchronize()
        with fetching():
            yield

    monkeypatch.setattr(copy_engine, "submit", held)
    monkeypatch.setattr(copy_engine, "wait", begun_and_waited_for)
    monkeypatch.setattr(copy_engine, "fetching", between_layers)


def failures(desk: Desk) -> list[str]:
    """Run the prompt on the engine and return the verdict's failures, other than those of the machine's speed."""
    weights = streamed(desk)
    desk.close_all()
    desk.open()
    desk.run(PROMPT, NEW)  # learns the order
    arrive(weights)
    last = max(copy.number for copy in desk.ask(ask.ReadCopies()).copies)
    before, spans, made = weights.statistics(), [], []
    for _ in range(RUNS):
        begun = time.time()
        made.append(tuple(desk.run(PROMPT, NEW).tokens))
        spans.append(TimeSpan(begun=begun, ended=time.time()))
    arrive(weights)
    after = weights.statistics()
    found = Flow(
        copies=desk.ask(ask.ReadCopies(since=last)).copies,
        spans=tuple(spans),
        passes=RUNS * NEW,
        elapsed=1.0,
        computing=after.pass_seconds - before.pass_seconds - after.waited_seconds + before.waited_seconds,
        streamed=weights.bytes_per_pass,
        curve=Curve([]),
        runs=tuple(made),
        rates=(1.0,),
    )
    bar = Bar(
        required=0.0,
        fastest=float("inf"),
        plain=(),
        rounds=(),
        together=1.0,
        without_core=0.0,
        measured_here=False,
    )
    asked = wanted("pcie_flatline.sample_duration_seconds=0.000001", "pcie_flatline.sustained_ratio=0.000001")
    said: list[str] = judge(asked, bar, found, limit_gb=None)["failures"]
    return [sentence for sentence in said if not sentence.startswith("Too few windows")]


@pytest.mark.usefixtures("long_layers")
def test_without_a_fault_nothing_is_found(desk: Desk) -> None:
    assert failures(desk) == []


@pytest.mark.usefixtures("long_layers")
def test_a_ring_without_prefetch(desk: Desk, monkeypatch: Patch) -> None:
    monkeypatch.setattr(BlockOrder, "after", lambda order, block, count: [])
    assert TURNS in failures(desk)


@pytest.mark.usefixtures("long_layers")
def test_copies_in_turns_with_computing(desk: Desk, monkeypatch: Patch) -> None:
    """Each copy is over before the layer is computed beside which it belongs, as on the stream that computes."""
    copy_engine = streamed(desk).copy_engine
    submit: Callable[..., Any] = copy_engine.submit

    def at_once(*asked: Any) -> Any:
        arrival = submit(*asked)
        copy_engine.wait(arrival)
        return arrival

    monkeypatch.setattr(copy_engine, "submit", at_once)
    assert failures(desk) == [TURNS]


@pytest.mark.usefixtures("long_layers")
def test_a_copy_made_twice(desk: Desk, monkeypatch: Patch) -> None:
    copy_engine = streamed(desk).copy_engine
    submit: Callable[..., Any] = copy_engine.submit

    def twice(transfers: Any, *others: Any) -> Any:
        submit(transfers, *others)
        return submit(transfers, *others)

    monkeypatch.setattr(copy_engine, "submit", twice)
    assert failures(desk) == [BYTES]
