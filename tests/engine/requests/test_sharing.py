"""A session that is shared: every request of the wire that names a session is allowed or refused by one table, and
nothing is told of it any more once that is taken back."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from djinn_jupyter.engine.process.inbox import named_by
from djinn_jupyter.engine.session.session import MOST_PERSONS, Grants
from djinn_jupyter.errors import UsageError
from djinn_jupyter.methods.datasets.request import CheckCollect, Collect
from djinn_jupyter.methods.features.request import EncodeFeatures, ReadFeature
from djinn_jupyter.wire import codec
from djinn_jupyter.wire import requests as ask
from djinn_jupyter.wire.replies import Failed, Finished, Inspected, Noted, Paused, SessionClosed
from tests.engine.cases import KINDS
from tests.engine.desk import desk_of, tokens
from tests.engine.persistence.crashes import crashed, forget, journal, written
from tests.engine.persistence.roundtrip import pair_of
from tests.engine.requests.house import GUESSED, UNSAID, House
from tests.wire import values

SHARED: Final = f"bert@{GUESSED}"  # as anna names it
PROMPT: Final = tokens(9, seed=4)
MOVING: Final = {ask.SendAway, ask.TakeIn, ask.SettleMove}  # of a session to another engine
# What was added is each person's own.
OF_THE_MODEL: Final = {ask.AddModule, ask.AddAdapter, ask.SetAdapter, ReadFeature, EncodeFeatures}
COLLECTING: Final = {Collect, CheckCollect}
OWNERS: Final = {ask.Open, ask.Close, ask.Share, ask.RestoreCheckpoint} | COLLECTING | OF_THE_MODEL | MOVING
NAMING: Final = [kind for kind in KINDS if issubclass(kind, ask.SessionRequest) or kind in (ask.Listen, ask.Unlisten)]
READING: Final = {kind for kind in KINDS if kind.terms.shared == "read"}
WRITING: Final = {kind for kind in KINDS if kind.terms.shared == "write"}
MOST: Final = 4  # cases of a kind


@pytest.fixture(scope="module")
def house() -> Iterator[House]:
    desk = desk_of("llama")
    yield House(desk)
    desk.close_all()


@pytest.fixture
def stopped(house: House) -> Iterator[House]:
    """Two sessions of bert, stopped; the one called GUESSED is not shared yet."""
    for name in (GUESSED, UNSAID):
        house.ask("bert", ask.Open(session=name))
        house.ask("bert", ask.SetBreakpoint(session=name, site="resid_post.3", when="step == 1"))
        assert isinstance(house.ask("bert", ask.Run(session=name, tokens=PROMPT, max_new_tokens=2)), Paused)
    yield house
    house.desk.close_all()
    for kept in house.desk.ask(ask.ListCheckpoints()).checkpoints:
        house.desk.ask(ask.DropCheckpoint(name=kept.name))


def share(house: House, access: Any) -> Any:
    return house.ask("bert", ask.Share(session=GUESSED, person="anna", access=access))


def cases(kind: type) -> Iterator[Any]:
    for fields in values.requests(kind, "ordinary")[:MOST]:
        second = {"other": SHARED} if kind is ask.Compare else {}
        yield kind(**{**fields, "session": SHARED, **second})


def refused(reply: Any) -> bool:
    return isinstance(reply, Failed) and ("shared with you" in reply.message or reply.code == "UnknownSession")


def test_the_table_has_every_request_that_names_a_session_once() -> None:
    assert set(NAMING) == READING | WRITING | OWNERS
    assert all(named_by(next(cases(kind))) == SHARED for kind in NAMING)


@pytest.mark.parametrize("access", [None, "read", "write"])
def test_every_request_is_allowed_or_refused_by_the_table(stopped: House, access: Any) -> None:
    share(stopped, access)
    allowed = {None: set(), "read": READING, "write": READING | WRITING}[access]
    before = stopped.of_bert()
    for kind in (one for one in NAMING if one not in {ask.Open} | COLLECTING):
        for request in cases(kind):
            reply = stopped.ask("anna", request)
            told = isinstance(request, ask.Unlisten) and access is None  # who hears no more needs no leave
            if access is None:
                assert isinstance(reply, Failed) != told, reply
            else:
                assert refused(reply) != (kind in allowed), reply
            assert UNSAID.encode() not in b"".join(map(bytes, codec.encode_reply(1, reply)))
    if access != "write":
        after = stopped.of_bert()
        assert [one for one in after if not isinstance(one, tuple)] == [
            one for one in before if not isinstance(one, tuple)
        ]
    assert {GUESSED, UNSAID} <= {one.name for one in stopped.ask("bert", ask.ListSessions()).sessions}


def test_one_who_reads_enters_inspects_and_forks_but_holds_nothing(stopped: House) -> None:
    own = stopped.ask("bert", ask.Describe(session=GUESSED)).session
    share(stopped, "read")
    opened = stopped.ask("anna", ask.Open(session=SHARED, join=True))
    assert (opened.created, opened.session.name, opened.session.holder) == (False, SHARED, "bert")
    assert stopped.ask("anna", ask.Note(session=SHARED, activity="in_use")) == Noted()
    seen, theirs = (stopped.ask(*one) for one in ((
        "anna", ask.Inspect(session=SHARED)), ("bert", ask.Inspect(session=GUESSED))))  # fmt: skip
    assert isinstance(seen, Inspected)
    assert seen.snapshot.value == theirs.snapshot.value
    fork = stopped.ask("anna", ask.Fork(session=SHARED, name="mine", stop=opened.session.stop))
    assert (fork.session.name, fork.session.owner) == ("mine", "anna")
    assert isinstance(stopped.ask("anna", ask.Resume(session="mine")), Finished)
    emptied = stopped.ask("anna", ask.Open(session=SHARED, fresh=True, force=True))
    assert "only its owner makes it fresh" in emptied.message
    assert stopped.ask("bert", ask.Describe(session=GUESSED)).session.holder == own.holder


def test_ones_own_stop_is_compared_with_anothers_while_that_is_shared(stopped: House) -> None:
    for asked in (ask.Open(session="mine"), ask.SetBreakpoint(session="mine", site="resid_post.3", when="step == 1")):
        stopped.ask("anna", asked)
    stopped.ask("anna", ask.Run(session="mine", tokens=tokens(9, seed=5), max_new_tokens=2))
    pairs = [("mine", SHARED), (SHARED, "mine"), (SHARED, SHARED)]

    def compared() -> list[Any]:
        return [stopped.ask("anna", ask.Compare(session=one, other=other)) for one, other in pairs]

    assert all(map(refused, compared()))
    share(stopped, "read")
    found = compared()
    assert [tuple(stop.session for stop in one.stops) for one in found] == pairs
    assert found[0].apart.differing == found[1].apart.differing > 0
    assert found[2].apart.differing == 0
    share(stopped, None)
    assert all(map(refused, compared()))
    assert refused(stopped.ask("anna", ask.Compare(session="mine", other=f"bert@{UNSAID}")))


def test_lists_tell_the_owner_with_whom_and_the_other_what_is_shared(stopped: House) -> None:
    share(stopped, "read")
    mine = {one.name: one for one in stopped.ask("bert", ask.ListSessions()).sessions}
    assert [(one.person, one.access) for one in mine[GUESSED].shares] == [("anna", "read")]
    theirs = [one for one in stopped.ask("anna", ask.ListSessions()).sessions if one.owner == "bert"]
    assert [one.name for one in theirs if one.breakpoints] == [SHARED]
    assert [one.session for one in stopped.ask("anna", ask.ReadTree()).branches] == [SHARED]
    share(stopped, None)
    assert stopped.ask("anna", ask.ReadTree()).branches == ()


def test_a_guest_is_not_told_with_whom_else_it_is_shared(stopped: House) -> None:
    share(stopped, "write")
    stopped.ask("bert", ask.Share(session=GUESSED, person="carl", access="read"))
    for request in (ask.Open(session=SHARED), ask.Describe(session=SHARED), ask.SwapIn(session=SHARED)):
        shares = stopped.ask("anna", request).session.shares
        assert [one.person for one in shares] == ["anna"], request
    assert len(stopped.ask("bert", ask.Describe(session=GUESSED)).session.shares) == 2


def test_a_name_that_no_one_has_is_refused_and_may_be_taken_back(stopped: House) -> None:
    refusal = stopped.ask("bert", ask.Share(session=GUESSED, person="ana", access="read"))
    assert (refusal.code, refusal.message.startswith("No ana is admitted here")) == ("UsageError", True)
    assert stopped.ask("bert", ask.Describe(session=GUESSED)).session.shares == ()
    assert not isinstance(stopped.ask("bert", ask.Share(session=GUESSED, person="ana", access=None)), Failed)


def test_a_session_is_shared_with_a_number_of_persons_at_most() -> None:
    shares = Grants()
    for number in range(MOST_PERSONS):
        shares.grant(f"person{number}", "read")
    shares.grant("person0", "write")
    with pytest.raises(UsageError, match="at most 100 persons"):
        shares.grant("anna", "read")
    shares.grant("anna", None)
    shares.grant("person1", None)
    shares.grant("anna", "read")
    assert len(shares.by_person) == MOST_PERSONS


def test_a_fork_that_is_shared_does_not_tell_what_it_was_forked_from(stopped: House) -> None:
    stopped.ask("bert", ask.Fork(session=UNSAID, name="fork"))
    stopped.ask("bert", ask.Share(session="fork", person="anna", access="read"))
    branch = stopped.ask("anna", ask.ReadTree()).branches[0]
    assert (branch.session, branch.forked_from) == ("bert@fork", None)


def test_what_was_asked_before_it_was_taken_back_is_not_told_after(stopped: House) -> None:
    share(stopped, "write")
    heard: list[Any] = []
    run = ask.Run(session=SHARED, tokens=PROMPT, max_new_tokens=30, ignore_eos=True, free=True)
    stopped.clients.receive(b"anna", run, heard.append, "anna")
    stopped.desk.engine.tick()
    assert not heard
    share(stopped, None)
    while not heard:
        stopped.desk.engine.tick()
    assert heard[0].code == "UnknownSession"
    assert "is shared with you" in heard[0].message


@pytest.mark.parametrize(("left", "code"), [(None, "UnknownSession"), ("read", "UsageError")])
def test_what_waits_in_a_queue_as_it_is_taken_back_is_not_done(stopped: House, left: Any, code: str) -> None:
    share(stopped, "write")
    heard, told = list[Any](), list[Any]()
    stopped.clients.receive(b"bert", ask.Share(session=GUESSED, person="anna", access=left), told.append, "bert")
    stopped.clients.receive(b"anna", ask.ClearBreakpoints(session=SHARED), heard.append, "anna")
    while not (heard and told):
        stopped.desk.engine.tick()
    assert heard[0].code == code
    assert len(stopped.ask("bert", ask.Describe(session=GUESSED)).session.breakpoints) == 1


def test_events_are_heard_while_it_is_shared(stopped: House) -> None:
    share(stopped, "read")
    stopped.ask("anna", ask.Listen(session=SHARED))
    missed = SessionClosed(session=SHARED)
    assert stopped.clients.seen(b"anna", missed) == missed
    assert stopped.clients.hearing(missed) == [(missed, [b"anna"])]
    share(stopped, None)
    assert stopped.clients.hearing(missed) == []
    assert stopped.clients.seen(b"anna", missed) is None
    share(stopped, "read")
    stopped.ask("anna", ask.Unlisten(session=SHARED))
    assert stopped.clients.hearing(missed) == []


def test_a_session_is_shared_with_another_and_only_where_others_can_name_it(stopped: House) -> None:
    own = stopped.ask("bert", ask.Share(session=GUESSED, person="bert", access="read"))
    assert "share it with another" in own.message
    stopped.desk.open("plain")
    with pytest.raises(UsageError, match="load the engine by a key of your own"):
        stopped.desk.ask(ask.Share(session="plain", person="anna", access="read"))


def test_a_session_made_fresh_stays_shared(stopped: House) -> None:
    share(stopped, "read")
    fresh = stopped.ask("bert", ask.Open(session=GUESSED, fresh=True))
    assert [one.person for one in fresh.session.shares] == ["anna"]


def test_a_recovery_brings_back_with_whom_it_is_shared(tmp_path: Path) -> None:
    desk, other = pair_of("llama")
    desk.open("bert@main")
    journal(desk, tmp_path / "alive")
    desk.ask(ask.Share(session="bert@main", person="anna", access="write"))
    written(desk)
    journal(other, crashed(tmp_path / "alive", tmp_path / "dead"))
    assert other.session("bert@main").shares.by_person == {"anna": "write"}
    assert other.engine.access("bert@main", "anna") == "write"
    forget(other)
    forget(desk)


def test_a_restored_checkpoint_is_shared_with_none(stopped: House) -> None:
    share(stopped, "write")
    assert stopped.ask("anna", ask.SaveCheckpoint(session=SHARED, name="copy", replace=True)).checkpoint
    restored = stopped.ask("anna", ask.RestoreCheckpoint(session="copy", name="copy"))
    assert (restored.session.name, restored.session.shares) == ("copy", ())


def test_a_person_may_say_the_whole_name_of_their_own(stopped: House) -> None:
    stopped.ask("anna", ask.Open(session="main"))
    assert stopped.ask("anna", ask.Describe(session="anna@main")).session.name == "main"
    stopped.ask("anna", ask.Close(session="anna@main"))
    assert "anna@main" not in stopped.desk.engine.sessions
