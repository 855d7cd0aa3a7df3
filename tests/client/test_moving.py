"""Sessions that move to another engine."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import djinn_jupyter as dj
from djinn_jupyter.api.engine import RemoteEngine
from djinn_jupyter.errors import EngineUnavailable, UnknownSession, UsageError
from djinn_jupyter.wire import replies
from djinn_jupyter.wire import requests as ask
from tests.client.reached import reached
from tests.engine.desk import Desk, build_desk
from tests.engine.persistence.carrying import moves_below
from tests.engine.words import tokenizer
from tests.families import build

Pair = tuple[RemoteEngine, RemoteEngine]


@pytest.fixture(scope="module")
def other() -> Desk:
    return build_desk(build("llama", layers=3), tokenizer())


@pytest.fixture
def pair(desk: Desk, other: Desk, tmp_path: Path) -> Iterator[Pair]:
    for one in (desk, other):
        moves_below(one, tmp_path)
    with reached(desk) as [here], reached(other) as [there]:
        yield here, there


def stopped(engine: RemoteEngine) -> dj.RemoteSession:
    session = engine.session("paris", fresh=True)
    session.breakpoint("resid_post.1", when="step == 1")
    session.run("the cat sat", max_new_tokens=4)
    return session


def test_a_session_moves_and_moves_back(pair: Pair) -> None:
    here, there = pair
    session = stopped(here)
    hidden = session.stop.hidden.tobytes()
    unmoved = session.fork("unmoved").resume().logits.tobytes()
    moved = session.move(there, "rome")
    assert [one.name for one in here.sessions()] == ["unmoved"]
    assert moved.name == "rome"
    assert moved.stop.hidden.tobytes() == hidden
    back = moved.move(here, "paris")
    assert back.resume().logits.tobytes() == unmoved
    with pytest.raises(UsageError, match="in that engine already"):
        back.move(here)


@pytest.mark.parametrize("kind", [ask.SendAway, ask.TakeIn])
@pytest.mark.parametrize("done", [True, False], ids=["done", "not done"])
@pytest.mark.parametrize("error", [EngineUnavailable("gone"), KeyboardInterrupt()], ids=lambda one: type(one).__name__)
def test_what_breaks_in_leaves_it_in_one_of_the_two(
    pair: Pair, monkeypatch: pytest.MonkeyPatch, kind: type, done: bool, error: BaseException
) -> None:
    """The reply is lost, of a request that was done or not."""
    here, there = pair
    session = stopped(here)
    for engine in pair:
        monkeypatch.setattr(engine.channel, "ask", lost(engine.channel.ask, kind, done, error))
    arrives = kind is ask.TakeIn and done
    if arrives and isinstance(error, EngineUnavailable):
        assert session.move(there).stop.site == "resid_post.1"
    else:
        with pytest.raises(type(error)):
            session.move(there)
    assert has(there, "paris") == arrives
    assert has(here, "paris") != arrives


def lost(send: Callable[[Any], Any], kind: type, done: bool, error: BaseException) -> Callable[[Any], Any]:
    def ask_it(request: Any) -> Any:
        if not isinstance(request, kind):
            return send(request)
        if done:
            assert isinstance(send(request).result(), replies.SentAway | replies.Opened)
        raise error

    return ask_it


def has(engine: RemoteEngine, name: str) -> bool:
    try:
        return engine.reach(name).stop.site == "resid_post.1"
    except UnknownSession:
        return False


def test_it_has_moved_where_the_first_engine_dies_after_it(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    here, there = pair
    session, send, missed = stopped(here), here.channel.ask, list[Any]()

    def gone(request: Any) -> Any:
        if not isinstance(request, ask.SettleMove):
            return send(request)
        missed.append(request)
        raise EngineUnavailable("gone")

    monkeypatch.setattr(here.channel, "ask", gone)
    assert session.move(there).stop.site == "resid_post.1"
    assert not send(missed[0]).result().stayed
    assert not has(here, "paris")
