"""Clients that listen: which events they hear, and what becomes of events and replies that a client does not read."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import zmq

from djinn_jupyter.engine.process import clients as listeners_module
from djinn_jupyter.engine.process.clients import Listeners
from djinn_jupyter.errors import UsageError
from djinn_jupyter.wire import codec, protocol
from djinn_jupyter.wire import replies as told
from djinn_jupyter.wire import requests as ask
from tests.process.served import Served, served
from tests.waiting import until

QUEUED = 50
PIPE_MESSAGES = 20_000  # more than the two sides' kernel buffers and queues take


def test_a_client_hears_what_it_has_named_once_and_nothing_when_it_has_gone() -> None:
    listeners = Listeners()
    listeners.add(b"1", "paris")
    listeners.add(b"1", "paris")
    listeners.add(b"1", None)
    listeners.add(b"2", "rome")
    assert set(listeners.of("paris")) == {b"1"}
    assert set(listeners.of("rome")) == {b"1", b"2"}
    listeners.remove(b"1", None)
    assert set(listeners.of("rome")) == {b"2"}
    listeners.forget(b"1")
    listeners.forget(b"1")
    listeners.remove(b"1", "paris")
    assert not listeners.of("paris")
    listeners.forget(b"2")
    assert listeners._peers == {}


def test_a_client_cannot_name_sessions_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listeners_module, "MOST_NAMES", 2)
    listeners = Listeners()
    for name in ("a", "b", "a"):
        listeners.add(b"1", name)
    with pytest.raises(UsageError, match="listen to all"):
        listeners.add(b"1", "c")
    listeners.add(b"2", "c")


class Slow:
    """A client that reads when it is told to, and whose queue takes few messages."""

    def __init__(self, context: zmq.Context[Any], house: Served) -> None:
        self._socket = context.socket(zmq.DEALER)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.setsockopt(zmq.RCVHWM, 1)
        self._socket.setsockopt(zmq.RCVTIMEO, 120_000)
        self._socket.connect(house.entry.commands)
        self._number = 0
        self.events: list[told.Event] = []
        self.ask(protocol.hello(holder="slow", user="ada"))

    def send(self, request: ask.Request) -> int:
        self._number += 1
        self._socket.send_multipart(codec.encode(self._number, request))
        return self._number

    def ask(self, request: ask.Request) -> told.Reply:
        return self.reply_to(self.send(request))

    def reply_to(self, number: int) -> told.Reply:
        """Read on to that reply; it has to be the next one."""
        while codec.is_event(frames := self._socket.recv_multipart()):
            self.events.append(codec.decode_event(frames).body)
        envelope = codec.decode_reply(frames)
        assert envelope.id == number
        return envelope.body

    def close(self) -> None:
        self._socket.close()


@pytest.fixture
def house() -> Iterator[Served]:
    with served(messages_queued=QUEUED) as house:
        yield house


@pytest.fixture
def slow(house: Served) -> Iterator[Slow]:
    with zmq.Context() as context:
        client = Slow(context, house)
        yield client
        client.close()


def test_a_client_that_does_not_read_loses_events_is_told_so_and_gets_every_reply(house: Served, slow: Slow) -> None:
    slow.ask(ask.Open(session="paris"))
    assert slow.ask(ask.Listen()) == told.Listening()
    taken = house.service.statistics().requests
    run = slow.send(ask.Run(session="paris", tokens=(1,), max_new_tokens=PIPE_MESSAGES))
    until(lambda: house.service.statistics().requests > taken, "the run's begin")
    with zmq.Context() as context:
        other = Slow(context, house)
        while house.service.statistics().pending:  # the run goes on although nobody reads of it
            other.ask(ask.Ping())
        later = [slow.send(ask.Ping()) for _ in range(2 * QUEUED)]
        other.close()
    dropped = house.service.statistics().events_dropped
    finished = slow.reply_to(run)
    assert isinstance(finished, told.Finished)
    assert [slow.reply_to(number) for number in later] == [told.Pong()] * len(later)
    missed = [event for event in slow.events if isinstance(event, told.EventsMissed)]
    steps = [event.step for event in slow.events if isinstance(event, told.TokenSampled)]
    assert missed
    assert dropped > PIPE_MESSAGES / 2
    assert steps == sorted(set(steps))
    assert len(slow.events) - len(missed) + dropped == PIPE_MESSAGES + 2  # its begin and its end


def test_events_are_heard_again_once_they_are_read(house: Served, slow: Slow) -> None:
    slow.ask(ask.Open(session="paris"))
    slow.ask(ask.Listen(session="paris"))
    slow.reply_to(slow.send(ask.Run(session="paris", tokens=(1,), max_new_tokens=PIPE_MESSAGES)))
    slow.events.clear()
    slow.ask(ask.Run(session="paris", tokens=(1,), max_new_tokens=3))
    assert [type(event) for event in slow.events] == [
        told.SessionRunning,
        *[told.TokenSampled] * 3,
        told.SessionFinished,
    ]
    slow.ask(ask.Unlisten(session="paris"))
    slow.events.clear()
    slow.ask(ask.Run(session="paris", tokens=(1,), max_new_tokens=3))
    assert slow.events == []


def test_sixty_four_listeners_hear_every_token_before_the_reply(house: Served) -> None:
    with zmq.Context() as context:
        clients = [Slow(context, house) for _ in range(64)]
        for client in clients:
            client.ask(ask.Listen(session="paris"))
        clients[0].ask(ask.Open(session="paris"))
        finished = clients[0].ask(ask.Run(session="paris", tokens=(1,), max_new_tokens=20))
        assert isinstance(finished, told.Finished)
        for client in clients:
            client.ask(ask.Ping())
            tokens = tuple(event.token for event in client.events if isinstance(event, told.TokenSampled))
            assert tokens == finished.tokens
            client.close()
