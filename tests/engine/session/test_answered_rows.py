"""Runs that shared a pass go on from it one behind the other, in one tick; mail and other people come between."""

from __future__ import annotations

from typing import Any

import pytest

from djinn_jupyter.engine.loop.mailbox import Holder
from djinn_jupyter.engine.session.session import Session
from djinn_jupyter.wire import requests as ask
from djinn_jupyter.wire.replies import TokenSampled
from tests.engine.desk import ME, Desk, build_desk, tokens
from tests.families import build

NEW = 30


@pytest.fixture(scope="module")
def llama() -> Desk:
    """An engine of its own: what the tests before left in a shared one decides which rows share a pass."""
    return build_desk(build("llama", layers=2))


def rows_under_way(desk: Desk, rows: int, replies: list[Any]) -> list[Session]:
    """Begin so many fast runs and return their sessions when each has two tokens."""
    for name in map(str, range(rows)):
        desk.open(name)
        run = ask.Run(session=name, tokens=tokens(5), max_new_tokens=NEW, ignore_eos=True, mode="fast")
        desk.post(run, replies)
    sessions = [desk.session(name) for name in map(str, range(rows))]
    while any(len(session.tokens) < 7 for session in sessions):
        desk.engine.tick()
    return sessions


def test_rows_that_share_a_pass_go_on_from_it_in_one_tick(llama: Desk) -> None:
    replies: list[Any] = []
    sessions = rows_under_way(llama, 4, replies)
    for _ in range(NEW - 4):
        before = sum(len(session.tokens) for session in sessions)
        llama.engine.tick()
        assert sum(len(session.tokens) for session in sessions) == before + len(sessions)
    while len(replies) < len(sessions):
        llama.engine.tick()
    assert {reply.tokens for reply in replies} == {llama.run(tokens(5), NEW, "0").tokens}
    llama.close_all()


def test_rows_that_end_with_one_pass_are_answered_together_and_published_once(
    llama: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    replies: list[Any] = []
    rows_under_way(llama, 4, replies)
    publisher, published = llama.engine.state_publisher, list[int]()
    publish = publisher.publish

    def noted(**how: Any) -> None:
        published.append(len(replies))
        publish(**how)

    monkeypatch.setattr(publisher, "publish", noted)
    monkeypatch.setattr(type(publisher), "due", False)
    while not replies:
        llama.engine.tick()
    assert len(replies) == 4
    assert published == [4]
    assert llama.engine.reading.statistics.sessions_running == 0
    llama.close_all()


def test_a_request_that_comes_while_rows_go_on_is_answered_before_the_next_row(
    llama: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    def hears(event: Any) -> None:
        if isinstance(event, TokenSampled):
            told.append(event.session)
            if event.session == rows[1]:
                llama.engine.submit(ask.Describe(session="0"), ME, lambda reply: told.append("answered"))

    ends: list[Any] = []
    rows_under_way(llama, 4, ends)
    llama.events.clear()
    llama.engine.tick()
    rows = [event.session for event in llama.events if isinstance(event, TokenSampled)]
    told: list[str] = []
    monkeypatch.setattr(llama, "hears", hears)
    llama.engine.tick()
    llama.engine.tick()
    assert told == [*rows[:2], "answered", *rows[2:]]
    llama.close_all()


def test_rows_of_one_person_alternate_with_a_run_of_another(llama: Desk) -> None:
    other, ends, replies = Holder(name="there", user="bert"), list[Any](), list[Any]()
    rows_under_way(llama, 3, ends)
    llama.engine.ask(ask.Open(session="of bert"), other)
    llama.events.clear()
    run = ask.Run(session="of bert", tokens=tokens(4), max_new_tokens=12, ignore_eos=True)
    llama.engine.submit(run, other, replies.append)
    while not replies:
        llama.engine.tick()
    told = [event.session for event in llama.events if isinstance(event, TokenSampled)]
    first = told.index("of bert")
    between = " ".join(told[first:]).split("of bert")
    assert [len(rows.split()) for rows in between[1:-1]] == [1] * 11
    llama.close_all()
