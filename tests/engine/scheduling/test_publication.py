"""A reply goes out before its effect is described, and whoever reads the published state finds the effect there."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from djinn_jupyter.engine.loop.replies import LONGEST_PERIOD, PERIOD, SHARE, EngineReading
from djinn_jupyter.engine.session import reports
from djinn_jupyter.engine.session.session import Session
from djinn_jupyter.wire import requests as ask
from djinn_jupyter.wire.nouns import SessionDescription
from djinn_jupyter.wire.replies import Reply
from tests.engine.desk import ME, Desk, build_desk
from tests.families import build


@pytest.fixture(scope="module")
def shared() -> Desk:
    return build_desk(build("llama"))


@pytest.fixture
def desk(shared: Desk) -> Iterator[Desk]:
    yield shared
    shared.close_all()


def names(reading: EngineReading) -> list[str]:
    return [one.name for one in reading.sessions]


def test_a_reply_is_out_before_its_session_is_described(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    happened: list[str] = []
    desk.open("a")

    def described(session: Session) -> SessionDescription:
        happened.append("described")
        return reports.describe(session)

    monkeypatch.setattr(desk.engine.state_publisher, "_describe", described)
    desk.engine.submit(ask.Describe(session="a"), ME, lambda reply: happened.append("replied"))
    desk.engine.tick(lambda: happened.append("let out"))
    assert happened == ["replied", "let out", "described"]


def test_no_job_waits_until_another_sessions_reply_has_left(desk: Desk) -> None:
    desk.open("a")
    desk.open("b")
    desk.engine.submit(ask.Run(session="a", tokens=(5, 6, 7), max_new_tokens=8), ME, lambda reply: None)
    desk.engine.tick()
    replies: list[Reply] = []
    desk.engine.submit(ask.Describe(session="b"), ME, replies.append)
    assert len(desk.engine.scheduler) == 1
    desk.engine.tick(pytest.fail)
    assert len(replies) == 1
    desk.settle()


def test_a_thread_that_reads_after_a_reply_finds_its_effect(desk: Desk) -> None:
    with ThreadPoolExecutor(1) as reader:
        found: list[Future[EngineReading]] = []
        begun = threading.Event()

        def read() -> EngineReading:
            begun.set()
            return desk.engine.reading

        def replied(reply: Reply) -> None:
            found.append(reader.submit(read))
            begun.wait()

        desk.engine.submit(ask.Open(session="late"), ME, replied)
        while not found:
            desk.engine.tick()
        assert "late" in names(found[0].result())


def test_a_publication_that_fails_holds_no_reader_up(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    publisher = desk.engine.state_publisher
    with monkeypatch.context() as patch:
        patch.setattr(publisher, "_read", lambda: 1 / 0)
        desk.open("a")
        assert not publisher.behind
    assert "it described its sessions: ZeroDivisionError" in str(desk.engine.faults.last)
    desk.open("b")
    assert names(desk.engine.reading) == ["a", "b"]


class Clock:
    """Stands in for the module `time`: seconds that have gone by, and those for which the thread has computed."""

    def __init__(self, now: float) -> None:
        self.now, self.computed = now, 0.0

    def monotonic(self) -> float:
        return self.now

    def thread_time(self) -> float:
        return self.computed


@pytest.mark.parametrize(("cost", "period"), [(0.0, PERIOD), (0.4 * SHARE, 0.4), (1.0, LONGEST_PERIOD)])
def test_what_takes_long_to_publish_is_published_less_often(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, cost: float, period: float
) -> None:
    desk.open("a")
    publisher = desk.engine.state_publisher
    clock = Clock(max(time.monotonic(), publisher._published) + 2 * LONGEST_PERIOD)

    def described(session: Session) -> SessionDescription:
        clock.computed += cost
        return reports.describe(session)

    monkeypatch.setattr(publisher, "_describe", described)
    monkeypatch.setattr("djinn_jupyter.engine.loop.replies.time", clock)
    publisher.publish(all_sessions=True)
    clock.now += 0.9 * period
    assert not publisher.due
    clock.now += 0.2 * period
    assert publisher.due
