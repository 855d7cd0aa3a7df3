from __future__ import annotations

from types import SimpleNamespace

import pytest
from msgspec.structs import replace

from djinn_jupyter import extensions
from djinn_jupyter._version import __version__
from djinn_jupyter.engine.process import clients as clients_module
from djinn_jupyter.engine.process.clients import AFAR_SILENCE_SECONDS, FORGOTTEN_SECONDS, ClientTable
from djinn_jupyter.errors import MalformedMessage, from_code
from djinn_jupyter.wire import codec, kinds, protocol
from djinn_jupyter.wire.replies import (
    Departed,
    Failed,
    Opened,
    Pong,
    Reply,
    SessionClosed,
    Sessions,
    ShuttingDown,
    Statistics,
    Welcome,
)
from djinn_jupyter.wire.requests import (
    Goodbye,
    Hello,
    Listen,
    ListSessions,
    Open,
    Ping,
    ReadStatistics,
    Request,
    Run,
    Shutdown,
    Tokenize,
)
from tests.process.fake_engine import FakeEngine, FakeSession

SILENCE = 20.0
OTHERS = [f"The client is of another version of Djinn (both are called {__version__}", "djinn stop --force"]


class House:
    """A client table with a clock that is set by hand and an engine that is ticked by hand."""

    def __init__(self) -> None:
        self.now = 0.0
        self.engine = FakeEngine()
        self.shut_down = 0
        self.clients = ClientTable(self.engine, shut_down=self._shut, silence_seconds=SILENCE, clock=lambda: self.now)

    def _shut(self) -> None:
        self.shut_down += 1

    def ask(self, peer: bytes, request: Request) -> Reply:
        answers: list[Reply] = []
        self.clients.receive(peer, request, answers.append, None)
        while not answers:
            assert self.engine.tick()
        self.engine.tick()
        assert len(answers) == 1
        return answers[0]

    def hello(self, peer: bytes, holder: str) -> Welcome:
        welcome = self.ask(peer, protocol.hello(holder=holder, user="ada"))
        assert isinstance(welcome, Welcome)
        return welcome

    def holder_of(self, session: str) -> str | None:
        while self.engine.tick():
            pass
        return self.engine.sessions[session].holder


@pytest.fixture
def house() -> House:
    return House()


def failure(reply: Reply) -> Failed:
    assert isinstance(reply, Failed)
    return reply


def test_nothing_is_answered_before_hello(house: House) -> None:
    for request in (Ping(), ListSessions(), Open(session="s"), Shutdown(force=True)):
        assert failure(house.ask(b"1", request)).code == "IllegalMove"
    assert house.shut_down == 0
    assert house.engine.sessions == {}


@pytest.mark.parametrize(
    ("greeting", "said"),
    [
        (Hello(version="0.0.7", holder="k", user="ada"), ["0.0.7", __version__]),
        *((Hello(version=__version__, protocol=other, holder="k", user="ada"), OTHERS) for other in ("", "of another")),
    ],
)
def test_another_version_is_refused_naming_both(house: House, greeting: Hello, said: list[str]) -> None:
    """One of the same version with other messages too."""
    reply = failure(house.ask(b"1", greeting))
    assert reply.code == "VersionMismatch"
    assert all(word in reply.message for word in said), reply.message
    assert failure(house.ask(b"1", Ping())).code == "IllegalMove"


def test_an_event_of_a_method_is_heard_by_clients_that_share_it(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    for peer, methods in ((b"1", protocol.method_digests()), (b"2", {}), (b"3", {"heads": "another"})):
        house.ask(peer, replace(protocol.hello(holder="h", user="ada"), methods=tuple(methods.items())))
        house.ask(peer, Listen())
    event = SessionClosed(session="s")
    ((heard, peers),) = house.clients.hearing(event)
    assert (heard, {*peers}) == (event, {b"1", b"2", b"3"})
    heads = next(method for method in extensions.methods() if method.name == "heads")
    monkeypatch.setattr(kinds, "method_of", lambda kind: heads)
    assert house.clients.hearing(event) == [(event, [b"1"])]
    assert [house.clients.seen(peer, event) for peer in (b"1", b"2", b"3")] == [event, None, None]


@pytest.mark.parametrize("name", ["", "a b", "a\n", "\x1b[31m", "1a"])
def test_a_method_that_is_no_identifier_is_refused(name: str) -> None:
    greeting = replace(protocol.hello(holder="h", user="ada"), methods=((name, "digest"),))
    with pytest.raises(MalformedMessage, match=r"matching regex"):
        codec.decode_request(codec.encode(1, greeting))


def test_what_must_be_answered_at_once_does_not_reach_the_engine(house: House) -> None:
    house.hello(b"1", "k")
    answers: list[Reply] = []
    for request in (Ping(), ReadStatistics(), ListSessions()):
        house.clients.receive(b"1", request, answers.append, None)
    assert [type(a) for a in answers] == [Pong, Statistics, Sessions]
    assert not house.engine.mailbox.waiting


def test_a_restarted_kernel_finds_its_sessions_by_its_holder_name(house: House) -> None:
    house.hello(b"old", "kernel-1")
    house.ask(b"old", Open(session="paris"))
    assert house.hello(b"new", "kernel-1").attached == ("paris",)
    assert isinstance(house.ask(b"new", Open(session="paris")), Opened)
    house.now = SILENCE + 1  # the old connection is silent for good, the new one is not
    house.ask(b"new", Ping())
    house.clients.sweep()
    assert house.engine.departed == []


def test_a_client_that_speaks_for_another_holder_has_left_the_first(house: House) -> None:
    house.hello(b"1", "kernel-1")
    house.ask(b"1", Open(session="paris"))
    house.hello(b"1", "kernel-2")
    assert house.engine.departed == ["kernel-1"]
    assert house.holder_of("paris") is None
    house.hello(b"1", "kernel-2")
    assert house.engine.departed == ["kernel-1"]


def test_a_silent_holder_has_gone_once_and_is_taken_back_with_its_sessions(house: House) -> None:
    house.hello(b"1", "kernel-1")
    house.ask(b"1", Open(session="paris"))
    house.now = SILENCE + 1
    house.clients.sweep()
    house.clients.sweep()
    assert house.engine.departed == ["kernel-1"]
    assert house.holder_of("paris") is None
    assert house.clients.attached == 0
    house.ask(b"1", Ping())
    assert house.clients.attached == 1
    assert house.holder_of("paris") == "kernel-1"
    house.now += SILENCE + 1
    house.clients.sweep()
    house.hello(b"2", "kernel-2")
    house.ask(b"2", Open(session="paris"))
    house.ask(b"1", Ping())
    assert house.holder_of("paris") == "kernel-2", "what another has opened meanwhile is not taken"


def test_goodbye_detaches_when_it_is_the_holders_last_client(house: House) -> None:
    house.hello(b"1", "kernel-1")
    house.hello(b"2", "kernel-1")
    house.ask(b"1", Open(session="paris"))
    assert isinstance(house.ask(b"2", Goodbye()), Departed)
    assert house.holder_of("paris") == "kernel-1"
    assert isinstance(house.ask(b"1", Goodbye()), Departed)
    assert house.holder_of("paris") is None
    assert failure(house.ask(b"1", Ping())).code == "IllegalMove"
    house.hello(b"3", "kernel-3")
    house.now = FORGOTTEN_SECONDS + 1  # one that was silent for a day is forgotten too
    house.clients.sweep()
    assert failure(house.ask(b"3", Ping())).code == "IllegalMove"


def test_shutdown_that_hurts_others_names_them_and_needs_force(house: House) -> None:
    """A journal brings them back; it does not when they are to be forgotten. Shown as everywhere, by their labels."""
    house.hello(b"1", "kernel-1")
    house.hello(b"2", "kernel-2")
    house.ask(b"1", Open(session="work/paris.ipynb"))
    house.ask(b"2", Open(session="rome"))
    reply = failure(house.ask(b"2", Shutdown()))
    assert reply.code == "SessionsWouldSuffer"
    assert reply.message == (
        "Sessions of others would end for good: paris; to stop the engine all the same, add --force "
        "(in Python force=True)."
    )
    assert house.shut_down == 0
    house.engine.keeps_sessions = True
    kept = failure(house.ask(b"2", Shutdown())).message
    assert kept.startswith("Sessions of others would be interrupted: paris (the next load brings them back); ")
    lost = failure(house.ask(b"2", Shutdown(forget=True))).message
    assert lost.startswith("Sessions of others would end for good: paris; ")
    house.engine.keeps_sessions = False
    assert house.ask(b"2", Shutdown(force=True)) == ShuttingDown(sessions_lost=("work/paris.ipynb", "rome"))
    assert house.shut_down == 1


def test_an_engine_forgets_the_sessions_of_other_notebooks_with_force_only(house: House) -> None:
    """Force is needed also where no notebook holds them, as after an engine has died."""
    house.hello(b"1", "kernel-1")
    house.engine.sessions["rome"] = FakeSession(name="rome", owner="ada", holder=None, notebook="work/rome.ipynb")
    house.engine._read()
    message = failure(house.ask(b"1", Shutdown(forget=True))).message
    assert message.startswith("Sessions of others would end for good: rome; ")
    assert message.endswith("add --force (in Python force=True), or leave out --forget.")
    assert house.shut_down == 0
    house.ask(b"1", Shutdown())
    assert house.shut_down == 1


def test_an_ordered_stop_that_cannot_keep_a_session_names_it_and_needs_force(house: House) -> None:
    house.engine.keeps_sessions = True
    house.hello(b"1", "kernel-1")
    for name in ("paris", "work/rome.ipynb"):
        house.ask(b"1", Open(session=name))

    def full() -> None:
        there = house.engine.reading
        house.engine.reading = SimpleNamespace(
            statistics=replace(there.statistics, journal_trouble="The disk is full."),
            sessions=tuple(replace(one, kept=one.name == "paris") for one in there.sessions),
        )

    full()
    reply = failure(house.ask(b"1", Shutdown()))
    assert reply.code == "SessionsWouldSuffer"
    assert reply.message == (
        "The latest of rome is in memory alone and would be lost (The disk is full.). Mend that and stop again in a "
        "moment, or lose it with --force (in Python force=True)."
    )
    assert house.shut_down == 0
    full()
    told = house.ask(b"1", Shutdown(force=True))
    assert told == ShuttingDown(sessions_lost=("work/rome.ipynb",), sessions_kept=("paris",))
    assert house.shut_down == 1


def test_detached_sessions_of_others_are_reported_not_protected(house: House) -> None:
    house.hello(b"1", "kernel-1")
    house.hello(b"2", "kernel-2")
    house.ask(b"1", Open(session="paris"))
    house.ask(b"1", Goodbye())
    house.engine.tick()
    assert house.ask(b"2", Shutdown()) == ShuttingDown(sessions_lost=("paris",))


def test_a_fault_of_the_engine_is_a_reply_too(house: House, caplog: pytest.LogCaptureFixture) -> None:
    house.hello(b"1", "kernel-1")
    reply = failure(house.ask(b"1", Tokenize(text="x")))
    assert "ZeroDivisionError" in str(from_code(reply.code, reply.message))
    assert "a fault of the engine" in caplog.text


def test_a_run_is_answered_once_by_the_engine(house: House) -> None:
    house.hello(b"1", "kernel-1")
    house.ask(b"1", Open(session="paris"))
    finished = house.ask(b"1", Run(session="paris", tokens=(1,), max_new_tokens=3))
    assert finished.tokens == (1, 2, 3)


def test_of_a_person_with_many_clients_the_longest_silent_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clients_module, "MOST_CLIENTS", 2)
    house, answers = House(), list[Reply]()

    def greet(peer: bytes, person: str = "anna") -> Reply:
        house.clients.receive(peer, protocol.hello(holder=peer.decode(), user="", token="t"), answers.append, person)
        return answers[-1]

    for peer in (b"1", b"2", b"2"):
        assert isinstance(greet(peer), Welcome)
    assert isinstance(greet(b"3", "bert"), Welcome)
    refused = greet(b"4")
    assert "anna has 2 notebooks and panels at this engine" in refused.message
    house.now = AFAR_SILENCE_SECONDS + 1
    assert isinstance(greet(b"2"), Welcome)
    assert isinstance(greet(b"4"), Welcome)
    assert [house.clients.knows(peer) for peer in (b"1", b"2", b"3", b"4")] == [False, True, True, True]
