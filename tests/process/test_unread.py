"""Unread messages of a person are bounded: beyond it requests are refused, and replies and events dropped and told."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import zmq

from djinn_jupyter.engine.process.clients import ClientTable
from djinn_jupyter.engine.process.seam import MESSAGE_BYTES, bytes_of
from djinn_jupyter.engine.process.sender import MISSED, NOT_SENT, PeerQueues, Sender
from djinn_jupyter.engine.process.service import NOT_TAKEN
from djinn_jupyter.remote.engine import large_messages as unread_module
from djinn_jupyter.remote.engine.access_keys import AdmittedKeys
from djinn_jupyter.remote.engine.connections import ReconnectTable
from djinn_jupyter.remote.engine.large_messages import FULL_SECONDS, LUMP_BYTES, Backpressure, LargeMessages
from djinn_jupyter.wire import codec, protocol
from djinn_jupyter.wire import replies as told
from djinn_jupyter.wire import requests as ask
from djinn_jupyter.wire.arrays import Array
from tests.engines import admit
from tests.process.admitted import entry_of
from tests.process.fake_engine import FakeEngine, FakeSession
from tests.process.peers import RawClient
from tests.process.served import Served, served
from tests.waiting import until

MIB = 2**20
ADA = b"ada's key"
pytestmark = pytest.mark.usefixtures("runtime")


@pytest.fixture
def house(monkeypatch: pytest.MonkeyPatch, runtime: Path) -> Iterator[Served]:
    """An engine whose logits have a MiB, and that lets a person leave four unread."""
    monkeypatch.setattr(unread_module, "MOST_UNREAD", 4 * MIB)
    admit("anna", "bert")
    with served(tcp=True) as house:
        receive = house.clients.receive

        def answer_large(
            peer: bytes, request: Any, answer: Callable[[told.Reply], None], person: str | None, known_as: Any
        ) -> None:
            if isinstance(request, ask.ReadLogits):
                answer(LOGITS)
            else:
                receive(peer, request, answer, person, known_as)

        house.clients.receive = answer_large
        yield house


LOGITS = told.Logits(
    logits=Array(dtype="uint8", shape=(MIB,), data=bytes(MIB)),
    stop=FakeSession("anna@main", owner="anna", holder="anna").stop_identity,
)


class Reader(RawClient):
    """A client over TCP that reads when it is told to."""

    def __init__(self, context: zmq.Context[Any], house: Served, key: str) -> None:
        super().__init__(context, entry_of(house, key), RCVHWM=1, RCVBUF=2**16)
        assert isinstance(self.ask(protocol.hello(holder=key, user=key)), told.Welcome)


@pytest.fixture
def readers(house: Served) -> Iterator[tuple[Reader, Reader]]:
    with zmq.Context() as context:
        both = Reader(context, house, "anna"), Reader(context, house, "bert")
        yield both
        for one in both:
            one.close()


def test_one_who_does_not_read_is_sent_no_more_and_told_so_and_others_are_served(
    house: Served, readers: tuple[Reader, Reader]
) -> None:
    anna, bert = readers
    before = house.service.statistics().replies
    asked = [anna.send(ask.ReadLogits(session="main")) for _ in range(80)]
    until(lambda: house.service.statistics().replies >= before + len(asked), "the service has answered")
    unread = [person.bytes for person in house.service._queues._backpressure._persons.values()]
    assert 0 < max(unread) < 6 * MIB
    assert bert.reply_to(bert.send(ask.ReadLogits(session="main"))) == LOGITS
    told_anna = [anna.reply_to(number) for number in asked]
    refused = [one for one in told_anna if one != LOGITS]
    assert told_anna[:4] == [LOGITS] * 4
    assert len(refused) > 30
    assert {one.message for one in refused if isinstance(one, told.Failed)} <= {NOT_TAKEN, NOT_SENT.message}
    assert anna.reply_to(anna.send(ask.ReadLogits(session="main"))) == LOGITS


@dataclass
class Tracked:
    done: bool = False


def test_one_message_of_any_size_goes_beside_the_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unread_module, "MOST_UNREAD", 3 * LUMP_BYTES)
    unread, large = Backpressure(), Tracked()
    assert unread.has_room(ADA, 100 * LUMP_BYTES)
    unread.take(ADA, b"1", 100 * LUMP_BYTES, large)
    assert unread.has_room(ADA, 3 * LUMP_BYTES)
    assert not unread.has_room(ADA, 4 * LUMP_BYTES)
    unread.wait(ADA, b"2", 3 * LUMP_BYTES)  # on another connection
    assert unread.has_room(ADA)
    assert not unread.has_room(ADA, 1)
    assert unread.has_room(b"bert's key", 1)
    large.done = True
    unread.wait(ADA, b"2", -LUMP_BYTES)
    assert unread.has_room(ADA, LUMP_BYTES)


def test_small_messages_count_by_the_next_one_that_is_tracked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unread_module, "MOST_UNREAD", LUMP_BYTES)
    unread, tracked = Backpressure(), [Tracked(), Tracked()]
    for one in tracked:
        while not unread.is_tracked(ADA, b"1", MESSAGE_BYTES):
            unread.take(ADA, b"1", MESSAGE_BYTES, None)
        unread.take(ADA, b"1", MESSAGE_BYTES, one)
    unread.wait(ADA, b"1", LUMP_BYTES)
    assert not unread.has_room(ADA)
    tracked[0].done = True
    assert not unread.has_room(ADA, MESSAGE_BYTES)
    tracked[1].done = True
    assert unread.has_room(ADA)
    unread.wait(ADA, b"1", -LUMP_BYTES)
    unread.keep_only(lambda peer: False)
    assert unread._persons == {}


def test_of_the_engines_own_user_nothing_is_counted() -> None:
    unread = Backpressure()
    unread.take(b"", b"1", 2**40, Tracked())
    unread.wait(b"", b"1", 2**40)
    assert unread.has_room(b"", 2**40)


class Router:
    """Takes every message, or none, as zmq does where its queue for a client is full."""

    def __init__(self) -> None:
        self.sent: list[list[Any]] = []
        self.takes = True

    def setsockopt(self, option: int, value: int) -> None: ...

    def send_multipart(self, frames: list[Any], flags: int, *, copy: bool) -> None:
        if not self.takes:
            raise zmq.Again
        self.sent.append(frames)


def test_events_for_one_who_does_not_read_are_dropped_and_it_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unread_module, "MOST_UNREAD", 2 * LUMP_BYTES)
    router = Router()
    queues = PeerQueues(router, 10, lambda peer: ADA)
    event = codec.encode_event(1, told.SessionClosed(session="main"))
    reply: list[codec.WireFrame] = [bytes(2 * LUMP_BYTES)]
    queues.send_event(b"1", event)
    queues.send_reply(b"1", reply)
    queues.send_reply(b"1", reply)
    for _ in range(3):
        queues.send_event(b"1", event)
    assert (len(router.sent), queues.events_dropped) == (3, 3)
    assert list(queues.go_on()) == []
    assert router.sent[-1] == [b"1", *MISSED]
    assert not queues.behind


def test_what_waits_counts_until_it_is_sent_or_dropped() -> None:
    router = Router()
    queues = PeerQueues(router, 10, lambda peer: ADA)
    reply: list[codec.WireFrame] = [bytes(LUMP_BYTES)]
    router.takes = False
    for peer in (b"1", b"1", b"2"):
        queues.send_reply(peer, reply)
    connections = queues._backpressure._persons[ADA].connections
    assert [connections[peer].waiting for peer in (b"1", b"2")] == [2 * bytes_of(reply), bytes_of(reply)]
    queues.forget(b"2")
    router.takes = True
    assert list(queues.go_on()) == []
    assert [connections[peer].waiting for peer in (b"1", b"2")] == [0, 0]
    assert queues._backpressure._persons[ADA].bytes == 2 * bytes_of(reply)


def test_beyond_the_bound_a_sentence_is_sent_and_then_the_connection_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unread_module, "MOST_UNREAD", 2 * LUMP_BYTES)
    monkeypatch.setattr(unread_module, "SENTENCES_BYTES", LUMP_BYTES)
    router = Router()
    queues = PeerQueues(router, 10, lambda peer: ADA)
    cut: list[bytes] = []
    clients = ClientTable(FakeEngine(), shut_down=lambda: None)
    sender = Sender(clients, {}, AdmittedKeys(None), ReconnectTable(LargeMessages()), queues, cut.append)
    queues._backpressure.wait(ADA, b"2", 2 * LUMP_BYTES + 1)
    sender.send_frames(b"1", 7, [b"the reply"])
    assert router.sent == [[b"1", *codec.encode_reply(7, NOT_SENT)]]
    queues._backpressure.wait(ADA, b"2", LUMP_BYTES)
    sender.send_frames(b"1", 8, [b"another"])
    assert (len(router.sent), sender.dropped, cut) == (1, 1, [b"1"])


def test_beyond_sentences_nothing_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unread_module, "MOST_UNREAD", 2 * LUMP_BYTES)
    monkeypatch.setattr(unread_module, "SENTENCES_BYTES", LUMP_BYTES)
    unread = Backpressure()
    unread.wait(ADA, b"1", 3 * LUMP_BYTES)
    assert not unread.takes_no_more(ADA)
    unread.wait(ADA, b"1", 1)
    assert unread.takes_no_more(ADA)


def test_what_is_counted_costs_the_same_whatever_is_unread() -> None:
    looks = 0

    class Counted(Tracked):
        def __getattribute__(self, name: str) -> Any:
            nonlocal looks
            looks += name == "done"
            return super().__getattribute__(name)

    unread = Backpressure()
    for _ in range(20_000):
        unread.take(ADA, b"1", LUMP_BYTES, Counted())
    asked, looks = 1000, 0
    assert not any(unread.has_room(ADA, 1) for _ in range(asked))
    assert looks <= 2 * asked


def test_who_reads_nothing_where_there_is_no_room_is_let_go_and_who_reads_slowly_is_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(unread_module, "MOST_UNREAD", 2 * LUMP_BYTES)
    now = 0.0
    unread = Backpressure(lambda: now)
    trackers = [Tracked() for _ in range(6)]
    for one in trackers:
        unread.take(ADA, b"1", LUMP_BYTES, one)
    for one in trackers[:2]:
        assert not unread.has_room(ADA, 1)
        assert unread.full == (ADA,)
        now += 0.9 * FULL_SECONDS
        one.done = True
        assert unread.keep_only(lambda peer: True) == []
    now += 1.1 * FULL_SECONDS
    assert unread.keep_only(lambda peer: True) == [b"1"]
    for one in trackers:
        one.done = True
    assert unread.keep_only(lambda peer: True) == []
    assert unread.full == ()
    unread.take(ADA, b"1", LUMP_BYTES, Tracked())  # for which there is room again
    now += 1.1 * FULL_SECONDS
    assert unread.keep_only(lambda peer: True) == []
