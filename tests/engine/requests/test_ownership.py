"""Ownership, for every request of the wire's own list: what ends another notebook's session is refused, and no other
request ends one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from djinn_jupyter.engine.loop.mailbox import Holder
from djinn_jupyter.engine.session.session import Session
from djinn_jupyter.errors import SessionHeld, SessionsWouldSuffer
from djinn_jupyter.wire import requests as ask
from djinn_jupyter.wire.replies import Failed
from tests.engine.cases import OF_A_SESSION, Case
from tests.engine.crowd import Crowd
from tests.engine.desk import ME, Desk, desk_of
from tests.engine.persistence.carrying import MOVE
from tests.magics.methods import PROVENANCE
from tests.wire import values

pytestmark = pytest.mark.drawn

PARIS, ROME = "shared/trips/paris.ipynb", "shared/trips/rome.ipynb"
OWNER = Holder(name="kernel-paris", user="tester", notebook=PARIS)
OTHER = Holder(name="kernel-rome", user="tester", notebook=ROME)
FORCE = " all the same, add --force (in Python force=True), or work on a fork of it (%djinn_fork)."
ENDING = (
    ask.Close(session="a"),
    ask.Open(session="a", fresh=True),
    ask.Open(session="a", fresh=True, join=True),
    ask.RestoreCheckpoint(session="a", name="noon", replace=True),
    ask.SendAway(session="a", to=PROVENANCE, move=MOVE),
)


@pytest.fixture(scope="module")
def crowd() -> Iterator[Crowd]:
    desk = desk_of("llama")
    yield Crowd(desk)
    desk.close_all()


@pytest.fixture
def desk(crowd: Crowd) -> Desk:
    crowd.bring("a", "stopped")
    owned(crowd.desk)
    return crowd.desk


def owned(desk: Desk, holder: Holder = OWNER) -> Session:
    """Have the session held by the notebook paris."""
    session = desk.session()
    session.detach()
    session.attach(holder.name, holder.notebook)
    return session


def answer(crowd: Crowd, request: Any, sender: Holder) -> Any:
    """The reply of an engine that has done all that the request asked for."""
    replies: list[Any] = []
    crowd.desk.engine.submit(request, sender, replies.append)
    while not replies:
        if not crowd.desk.engine.tick():
            crowd.desk.engine.mailbox.wait(0.002)
    return replies[0]


def seen(session: Session) -> Any:
    return (session.tokens, session.stop, session.edition, session.frame, session.breakpoints, session.rules)


@pytest.mark.parametrize("kind", OF_A_SESSION, ids=lambda kind: kind.__name__)
def test_a_request_to_another_notebooks_session_is_free_for_all_or_refused_and_changes_nothing(
    crowd: Crowd, kind: type
) -> None:
    for fields in values.requests(kind, "ordinary"):
        crowd.bring("a", "stopped")
        session = owned(crowd.desk)
        before = seen(session)
        for name in ("for_holder", "for_notebook"):
            fields = {**fields, **({name: None} if name in fields else {})}
        request = Case(kind, fields, "a").request
        reply = answer(crowd, request, OTHER)
        deed = request.deed if isinstance(request, ask.OwnerRequest) else None
        forced = isinstance(request, ask.OwnerRequest) and request.force
        if deed is None:
            assert crowd.desk.engine.sessions["a"] is session  # so it was rightly declared free
            assert (session.holder, session.notebook) == (OWNER.name, PARIS)
        elif not forced:
            said = f"Session 'a' is open in the notebook trips/paris.ipynb; to {deed}{FORCE}"
            assert reply == Failed(code="SessionsWouldSuffer", message=said)
            assert crowd.desk.engine.sessions["a"] is session
            assert seen(session) == before
        crowd.desk.settle()
        crowd.leave(*[name for name in crowd.desk.engine.sessions if name != "a"])


def test_every_request_with_force_says_what_it_is_needed_for() -> None:
    ending = {type(one) for one in ENDING}
    assert ending == {kind for kind in OF_A_SESSION if issubclass(kind, ask.OwnerRequest)}
    assert all(one.deed for one in ENDING)


def test_a_running_session_that_cannot_be_made_fresh_is_not_taken_either(crowd: Crowd) -> None:
    crowd.bring("a", "running")
    session = crowd.desk.session()
    session.detach()
    reply = answer(crowd, ask.Open(session="a", fresh=True), OTHER)
    assert (reply.code, session.holder) == ("IllegalMove", None)
    crowd.desk.settle()


@pytest.mark.parametrize("request_", ENDING, ids=lambda one: type(one).__name__)
def test_its_owner_needs_no_force_whoever_speaks_for_it(desk: Desk, request_: Any) -> None:
    """A restarted kernel has another name but the same notebook; a server names the kernel and the notebook."""
    restarted = Holder(name="kernel-new", user="tester", notebook=PARIS)
    server = Holder(name="process-1", user="tester")
    for sender, given in ((OWNER, {}), (restarted, {}), (server, {"for_notebook": PARIS, "for_holder": OWNER.name})):
        given |= {"join": True} if isinstance(request_, ask.Open) else {}
        desk.ask(ask.Open(session="a", join=True))
        owned(desk)
        reply = answer(Crowd(desk), msgspec.structs.replace(request_, **given), sender)
        assert not isinstance(reply, Failed) or reply.code not in ("SessionsWouldSuffer", "SessionHeld"), reply


def test_a_notebook_that_was_renamed_ends_its_own_session_in_the_sidebar(desk: Desk) -> None:
    """Its kernel goes by the path that it was started with, the server by the present one."""
    server, renamed = Holder(name="process-1", user="tester"), "shared/trips/spring.ipynb"
    close = ask.Close(session="a", for_holder=OWNER.name, for_notebook=renamed)
    for other in (OTHER.name, None):
        with pytest.raises(SessionsWouldSuffer):
            desk.engine.ask(msgspec.structs.replace(close, for_holder=other), server)
    desk.session().keep_for(ROME)  # which has not opened it again: what was entered is not one's own
    with pytest.raises(SessionsWouldSuffer):
        desk.engine.ask(close, server)
    desk.session().keep_for(None)
    desk.engine.ask(close, server)
    assert "a" not in desk.engine.sessions


def test_a_process_without_a_notebook_owns_what_it_has_open(desk: Desk) -> None:
    session = owned(desk, ME)
    with pytest.raises(
        SessionsWouldSuffer, match=r"'a' is open in another kernel \(tester\); to close it all the same"
    ):
        desk.engine.ask(ask.Close(session="a"), OTHER)
    assert desk.session() is session
    desk.engine.ask(ask.Close(session="a"), ME)


@pytest.mark.parametrize("end", ["departs", "is gone"])
def test_a_holder_that_is_gone_blocks_nobody(desk: Desk, end: str) -> None:
    if end == "departs":
        desk.engine.lose_holder(OWNER)
    else:  # the server sees the kernel die before the engine has missed it for long enough
        desk.ask(ask.Note(session="a", activity="gone"))
    assert desk.engine.ask(ask.Open(session="a"), OTHER).session.holder == OTHER.name
    owned(desk)
    desk.engine.lose_holder(OWNER) if end == "departs" else desk.ask(ask.Note(session="a", activity="gone"))
    desk.engine.ask(ask.Close(session="a"), OTHER)
    assert "a" not in desk.engine.sessions


def test_a_kernel_that_shows_life_again_owns_its_session_still(desk: Desk) -> None:
    desk.ask(ask.Note(session="a", activity="gone"))
    desk.ask(ask.Note(session="a", activity="busy"))
    with pytest.raises(SessionsWouldSuffer):
        desk.engine.ask(ask.Close(session="a"), OTHER)


def test_a_recovered_session_waits_for_its_notebook(desk: Desk) -> None:
    """After an engine has died no kernel has any open, and all notebooks still work with theirs."""
    session = desk.session()
    session.detach()
    session.keep_for(PARIS)
    desk.engine.ask(ask.Open(session="a"), OTHER)  # entering it does not make it one's own
    both = r"'a' belongs to the notebook trips/paris.ipynb and is open in the notebook trips/rome.ipynb; to close it"
    with pytest.raises(SessionsWouldSuffer, match=both):
        desk.engine.ask(ask.Close(session="a"), OTHER)
    with pytest.raises(
        SessionHeld, match=r"belongs to the notebook trips/paris.ipynb and is open in the notebook trips/"
    ):
        desk.engine.ask(ask.Open(session="a"), OWNER)
    desk.engine.ask(ask.Detach(session="a"), OTHER)
    with pytest.raises(SessionsWouldSuffer, match=r"'a' belongs to the notebook trips/paris.ipynb; to close it"):
        desk.engine.ask(ask.Close(session="a"), OTHER)
    desk.engine.ask(ask.Open(session="a"), OWNER)
    desk.engine.ask(ask.Detach(session="a"), OWNER)
    assert session.notebook is None
    desk.engine.ask(ask.Close(session="a"), OTHER)


def test_views_read_the_notebook_from_the_description(desk: Desk) -> None:
    assert (desk.describe().holder, desk.describe().notebook) == (OWNER.name, PARIS)
