"""Messages read and not yet handled: persons take turns, and who sends too many loses the connection, alone."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import zmq

from djinn_jupyter.engine.process import inbox as inbox_module
from djinn_jupyter.engine.process import inbox as pending
from djinn_jupyter.engine.process.inbox import FRAME_BYTES, FRAMES_AT_ONCE, Inbox, Message, MessageReader
from djinn_jupyter.engine.process.service import MANY
from djinn_jupyter.wire import codec, protocol
from djinn_jupyter.wire import replies as told
from djinn_jupyter.wire import requests as ask
from djinn_jupyter.wire.keys import LOCAL
from tests.process.admitted import admitted, entry_of, opened
from tests.process.peers import RawClient
from tests.process.served import Served, served
from tests.waiting import until

ADA, BERT = b"ada's key", b"bert's key"


def _message(key: bytes, text: bytes, peer: bytes = b"1") -> Message:
    return Message(peer, key, [text])


def test_persons_take_turns_and_each_ones_messages_stay_in_order() -> None:
    inbox = Inbox()
    for key, text in ((ADA, b"1"), (ADA, b"2"), (ADA, b"3"), (BERT, b"4"), (LOCAL, b"5")):
        assert inbox.put(_message(key, text)) is None
    assert [inbox.take().frames[0] for _ in range(5)] == [b"1", b"4", b"5", b"2", b"3"]
    assert not inbox


@pytest.mark.parametrize("bound", ["MOST_MESSAGES", "MOST_BYTES"])
def test_of_one_person_the_connection_with_most_is_let_go_and_no_other(
    bound: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inbox_module, bound, 10)
    inbox = Inbox()
    assert inbox.put(_message(ADA, b".", b"quiet")) is None
    for _ in range(9):
        assert inbox.put(_message(ADA, b".", b"loud")) is None
        assert inbox.put(_message(BERT, b".")) is None
        assert inbox.put(_message(LOCAL, b"." * 100)) is None
    assert inbox.put(_message(ADA, b".", b"quiet")) == b"loud"
    left = [inbox.take() for _ in range(2 + 9 + 9)]
    assert [one.peer for one in left if one.key == ADA] == [b"quiet", b"quiet"]
    assert not inbox
    assert [inbox.put(_message(ADA, b"." * 11, b"alone")) is None, bool(inbox)] == [bound == "MOST_MESSAGES"] * 2


def test_a_message_of_very_many_frames_is_read_in_turns_and_is_known_by_its_connection_meanwhile() -> None:
    with zmq.Context() as context, context.socket(zmq.ROUTER) as router, context.socket(zmq.DEALER) as dealer:
        for option in (zmq.RCVHWM, zmq.SNDHWM):
            router.setsockopt(option, 0)
            dealer.setsockopt(option, 0)
        router.bind("inproc://frames")
        dealer.setsockopt(zmq.IDENTITY, b"many")
        dealer.connect("inproc://frames")
        dealer.send_multipart([b""] * (3 * FRAMES_AT_ONCE) + [b"last"])
        dealer.send_multipart([b"next"])
        noted: list[Any] = []
        reader = MessageReader(router, lambda *one: noted.append(one))
        assert [reader.read() for _ in range(3)] == [b"many"] * 3
        first, second = reader.read(), reader.read()
        assert isinstance(first, Message)
        assert (first.peer, len(first.frames)) == (b"many", codec.MAX_FRAMES + 1)
        assert second == Message(b"many", LOCAL, [b"next"])
        assert [one.bytes for one, _ in noted] == [b"many"] * 5
        assert sum(size for _, size in noted) == (3 * FRAMES_AT_ONCE + 2) * FRAME_BYTES + len(b"lastnext")
        with pytest.raises(zmq.Again):
            reader.read()


async def test_who_sends_a_message_of_very_many_frames_loses_the_connection_alone(
    house: Served, anna: RawClient
) -> None:
    bert = await opened(house, "bert")
    assert isinstance(anna.ask(protocol.hello(holder="k", user="anna")), told.Welcome)
    anna.socket.send_multipart([b""] * (2 * FRAMES_AT_ONCE))
    until(lambda: bool(house.service._connections.cut_off), "the connection is closed")
    assert await bert.ask(ask.Ping()) == told.Pong()
    until(lambda: len(house.service._connections._peers) == 1, "zmq has closed it")
    await bert.close()


@pytest.fixture
def house(runtime: Path) -> Iterator[Served]:
    admitted()
    with served(tcp=True) as house:
        yield house


@pytest.fixture
def anna(house: Served) -> Iterator[RawClient]:
    """A person's client that sends any number of messages at once."""
    with zmq.Context() as context:
        raw = RawClient(context, entry_of(house, "anna"), SNDHWM=0, RCVHWM=0, RECONNECT_IVL=-1)
        yield raw
        raw.close()


def test_each_of_many_hellos_at_once_is_answered(anna: RawClient) -> None:
    asked = [anna.send(protocol.hello(holder="k", user="anna")) for _ in range(5000)]
    answers = [anna.receive() for _ in range(5000)]
    assert [one.id for one in answers] == asked
    assert all(isinstance(one.body, told.Welcome) for one in answers)


async def test_who_floods_loses_the_connection_and_nobody_else_does(
    house: Served, anna: RawClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inbox_module, "MOST_MESSAGES", 100)
    bert = await opened(house, "bert")
    assert isinstance(anna.ask(protocol.hello(holder="k", user="anna")), told.Welcome)
    service, thread = house.service, house.service._connections
    monkeypatch.setattr(service, "_receive", lambda: None)  # reads, and handles nothing
    for _ in range(300):
        anna.send(ask.Ping())
    until(lambda: bool(thread.cut_off), "the connection is closed")
    until(lambda: len(thread._peers) == 1, "zmq has closed it")
    monkeypatch.undo()
    assert await bert.ask(ask.Ping()) == told.Pong()
    await bert.close()


def test_a_person_has_so_many_requests_at_the_engine_and_gets_a_sentence_for_the_next(
    house: Served, anna: RawClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pending, "MOST_OF_OWNER", 5)
    monkeypatch.setattr(house.engine, "tick", lambda: False)  # the engine answers nothing
    assert isinstance(anna.ask(protocol.hello(holder="k", user="anna")), told.Welcome)
    *_, sixth, seventh = [anna.send(ask.Open(session=f"s{number}")) for number in range(7)]
    refused = [anna.receive() for _ in range(2)]
    assert [(one.id, one.body.message) for one in refused] == [(sixth, MANY), (seventh, MANY)]
    assert anna.ask(ask.Ping()) == told.Pong()
