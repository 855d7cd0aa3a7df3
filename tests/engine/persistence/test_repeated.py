"""A request that comes again to the next engine is not done again: it gets the reply that the journal has, and the
session stands as after the first time. Every request of the wire's own list that changes a session."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from djinn_jupyter.engine.loop import replies as repeats
from djinn_jupyter.engine.loop.replies import kept_with
from djinn_jupyter.engine.session import session as answered
from djinn_jupyter.engine.session.session import AnsweredRequests, RequestId
from djinn_jupyter.engine.store.dump import dump_session
from djinn_jupyter.wire import replies as told
from djinn_jupyter.wire import requests as ask
from djinn_jupyter.wire.edits import Scale
from tests.engine.cases import OF_A_SESSION, State
from tests.engine.crowd import Crowd
from tests.engine.desk import ME, Desk, tokens
from tests.engine.persistence.carrying import MOVE, moves_below, provenance
from tests.engine.persistence.crashes import crashed, forget, journal
from tests.engine.persistence.roundtrip import pair_of
from tests.engine.persistence.test_all_fields import differing
from tests.wire import values

PROMPT: Final = tokens(10)
CLIENT: Final = b"sixteen bytes of"
STATES: Final[tuple[State, ...]] = ("missing", "empty", "stopped", "away", "running")
TAKEN: Final[dict[type, dict[str, Any]]] = {
    ask.EnableBreakpoint: {"number": 1, "enabled": False},
    ask.EnableRule: {"number": 1, "enabled": False},
    ask.EnableEdit: {"number": 1, "enabled": False},
    ask.Steer: {"site": "resid_post.1", "edit": Scale(factor=0.5)},
    ask.ApplyEdit: {"edit": Scale(factor=0.5)},
    ask.RestoreCheckpoint: {"name": "there", "replace": True, "force": True},
    ask.SetAttention: {"attention": "eager"},
    ask.Share: {"person": "bert", "access": "read"},
    ask.Run: {"tokens": PROMPT, "max_new_tokens": 3, "ignore_eos": True},
    ask.Back: {"count": 1, "by": "layer"},
}
"""Of the requests whose ordinary values are refused in every state, ones that are not."""


def _requests_of(kind: type) -> Iterator[ask.Request]:
    ordinary = values.requests(kind, "ordinary")[:4]
    for fields in (*ordinary, *([TAKEN[kind]] if kind in TAKEN else [])):
        yield kind(**{**fields, "session": _name_for(kind)})


def _name_for(kind: type) -> str:
    return "anna@a" if kind is ask.Share else "a"


OF_TWO_ENGINES: Final = (ask.SendAway, ask.TakeIn)
CHANGING: Final = [kind for kind in OF_A_SESSION if kind not in OF_TWO_ENGINES and kept_with(next(_requests_of(kind)))]


def number_of(number: int, *, again: bool = False) -> RequestId:
    return RequestId(client=CLIENT, number=number, again=again)


def asked(desk: Desk, request: ask.Request, known_as: RequestId | None) -> told.Reply:
    """The one reply to a request that may come again."""
    replies: list[told.Reply] = []
    desk.engine.accept(request, ME, replies.append, known_as)
    while not replies:
        if not desk.engine.tick():
            desk.engine.mailbox.wait(0.01)
    return replies[0]


def images(desk: Desk) -> dict[str, Any]:
    """All sessions as the journal keeps them, but for what recomputing lost rows changes, and the replies."""
    kept = {name: dump_session(session, None) for name, session in desk.engine.sessions.items()}
    beside = ("answered", "lost", "exactness", "holder")
    return {
        name: {field: getattr(image, field) for field in image.__struct_fields__ if field not in beside}
        for name, image in kept.items()
    }


@pytest.fixture
def alive(tmp_path: Path) -> Iterator[tuple[Desk, Desk, Path]]:
    """An engine with a journal, one to come after it, and the journal's folder."""
    one, other = pair_of("llama")
    for kept in one.ask(ask.ListCheckpoints()).checkpoints:  # of other tests
        one.ask(ask.DropCheckpoint(name=kept.name))
    journal(one, tmp_path / "alive")
    yield one, other, tmp_path
    for desk in (one, other):
        if desk.engine.persistence.journal is not None:
            forget(desk)


def killed(desk: Desk, other: Desk, folder: Path, name: str) -> None:
    """Have the other engine find what the first one would leave if it were killed now."""
    if other.engine.persistence.journal is not None:
        forget(other)
    journal(other, crashed(folder / "alive", folder / name))


def _bring(desk: Desk, name: str, state: State) -> None:
    """Have a session in that state; a stopped one with a rule and an edit."""
    crowd = Crowd(desk)
    crowd.leave("another name", name)
    crowd.bring(name, state)
    if state == "stopped":
        desk.steer("resid_post.2", name=name)
        desk.edit(name=name)


@pytest.mark.parametrize("kind", CHANGING, ids=lambda kind: kind.__name__)
def test_any_request_that_changes_a_session_is_done_once(kind: type, alive: tuple[Desk, Desk, Path]) -> None:
    one, other, folder = alive
    name, number, done = _name_for(kind), 0, 0
    one.open("other")
    one.run(PROMPT, 2, "other")
    one.ask(ask.SaveCheckpoint(session="other", name="there", replace=True))
    for state in STATES:
        for request in _requests_of(kind):
            _bring(one, name, state)
            number += 1
            reply = asked(one, request, number_of(number))
            if isinstance(reply, told.Failed):
                continue
            done += 1
            killed(one, other, folder, f"{state} {number}")
            once = images(other)
            assert asked(other, request, number_of(number, again=True)) == reply or kind is ask.Close, (state, request)
            assert list(differing(once, images(other))) == [], (state, request)
            break  # one that is taken, in each state
    assert done, "no request of this kind was taken"


@pytest.mark.parametrize("step", ["sent", "taken"])
def test_a_step_of_a_move_is_done_once(alive: tuple[Desk, Desk, Path], step: str) -> None:
    """The engine is killed after its reply, and the next one, which has looked who has the session, hears it again."""
    one, other, folder = alive
    _bring(one, "a", "stopped")
    moves_below(one, folder / "alive")
    request: ask.Request = ask.SendAway(session="a", to=provenance(one), move=MOVE)
    reply = asked(one, request, number_of(1))
    if step == "taken":
        request = ask.TakeIn(session="b", move=MOVE)
        reply = asked(one, request, number_of(1))
    assert not isinstance(reply, told.Failed), reply
    moves_below(other, folder / step)
    killed(one, other, folder, step)
    assert asked(other, request, number_of(1, again=True)) == reply
    assert set(other.engine.sessions) == ({"a"} if step == "sent" else {"b"})
    one.session("a").moving.end()


@pytest.mark.parametrize(
    "request_",
    [ask.Run(session="a", tokens=PROMPT, max_new_tokens=400, ignore_eos=True), ask.Resume(session="a", free=True)],
    ids=lambda request: type(request).__name__,
)
def test_what_was_under_way_is_not_begun_again_and_its_asker_is_told(
    request_: ask.Request, alive: tuple[Desk, Desk, Path]
) -> None:
    one, other, folder = alive
    Crowd(one).bring("a", "stopped")
    one.clear()
    replies: list[told.Reply] = []
    one.engine.accept(request_, ME, replies.append, number_of(7))
    kept = one.engine.persistence.journal
    before = len(one.session().tokens)
    while len(one.session().tokens) < before + 3 and not replies:
        one.engine.tick()
    kept._write(one.session())
    assert not replies
    killed(one, other, folder, "dead")
    once = images(other)
    assert asked(other, request_, number_of(7, again=True)) == repeats.BROKEN_OFF
    assert list(differing(once, images(other))) == []
    assert isinstance(asked(other, ask.Run(session="a", extend=True, max_new_tokens=1), number_of(8)), told.Finished)


def test_one_that_the_engine_had_not_taken_is_done_by_the_next(alive: tuple[Desk, Desk, Path]) -> None:
    one, other, folder = alive
    one.open()
    killed(one, other, folder, "dead")
    steered = asked(
        other, ask.Steer(session="a", site="resid_post.1", edit=Scale(factor=0.5)), number_of(3, again=True)
    )
    assert isinstance(steered, told.Steered)
    assert len(other.session().rules) == 1


def test_a_session_that_is_to_be_closed_again_is_closed(alive: tuple[Desk, Desk, Path]) -> None:
    one, other, folder = alive
    one.open()
    assert isinstance(asked(one, ask.Close(session="a"), number_of(1)), told.Closed)
    killed(one, other, folder, "dead")
    assert isinstance(asked(other, ask.Close(session="a"), number_of(1, again=True)), told.Closed)
    never = asked(other, ask.Close(session="a"), number_of(2))
    assert isinstance(never, told.Failed), "one that was not sent before names a session that is not there"


def test_a_session_that_is_made_fresh_knows_what_its_name_was_asked(alive: tuple[Desk, Desk, Path]) -> None:
    one, other, folder = alive
    one.open()
    breakpoint_ = ask.SetBreakpoint(session="a", site="3")
    first = asked(one, breakpoint_, number_of(1))
    asked(one, ask.Open(session="a", fresh=True, force=True), number_of(2))
    killed(one, other, folder, "dead")
    assert asked(other, breakpoint_, number_of(1, again=True)) == first
    assert not other.session().breakpoints


def test_a_refused_request_leaves_no_trace_in_a_session(alive: tuple[Desk, Desk, Path]) -> None:
    one, _, _ = alive
    one.open()
    assert isinstance(asked(one, ask.Resume(session="a"), number_of(1)), told.Failed)
    assert list(one.session().answered) == []


def test_another_client_of_the_same_number_is_another(alive: tuple[Desk, Desk, Path]) -> None:
    one, other, folder = alive
    one.open()
    asked(one, ask.SetBreakpoint(session="a", site="3"), number_of(1))
    killed(one, other, folder, "dead")
    theirs = RequestId(client=b"another sixteen ", number=1, again=True)
    asked(other, ask.SetBreakpoint(session="a", site="4"), theirs)
    assert len(other.session().breakpoints) == 2


def test_what_is_let_go_was_done_and_is_said_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answered, "MOST_REQUESTS", 2)
    monkeypatch.setattr(answered, "MOST_BYTES", 10)
    known = AnsweredRequests()
    for number, reply in enumerate((b"one", b"two", b"three", b"a very long one"), start=1):
        known.conclude(number_of(number), reply)
    gone = known.find(number_of(2, again=True))
    assert (gone.done, gone.reply) == (True, None)
    assert [(one.number, one.reply) for one in known] == [(3, None), (4, None)]
    assert known.find(number_of(5, again=True)) is None
    assert known.find(number_of(2)) is None, "a number that was never sent before"


def test_the_holder_that_had_a_session_finds_it_until_another_opens_it(alive: tuple[Desk, Desk, Path]) -> None:
    one, other, folder = alive
    one.open()
    killed(one, other, folder, "dead")
    assert other.engine.left_by(ME) == ("a",)
    other.open()
    assert other.engine.left_by(ME) == ()
