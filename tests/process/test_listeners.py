"""Who listens hears events by their number, and replies are kept for a line that comes back."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import zmq

from djinn_jupyter.engine.process import clients as listeners_module
from djinn_jupyter.engine.process.clients import Listeners
from djinn_jupyter.engine.process.seam import bytes_of
from djinn_jupyter.errors import UsageError
from djinn_jupyter.remote.engine import connections as kept_replies
from djinn_jupyter.remote.engine import connections as lines_module
from djinn_jupyter.remote.engine.connections import EventRing, ReconnectTable
from djinn_jupyter.remote.engine.large_messages import LargeMessages
from djinn_jupyter.wire import codec, protocol
from djinn_jupyter.wire import replies as told
from djinn_jupyter.wire import requests as ask
from djinn_jupyter.wire.keys import LOCAL
from tests.process.peers import RawClient
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
    assert listeners._names == {}


def test_a_client_cannot_name_sessions_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listeners_module, "MOST_NAMES", 2)
    listeners = Listeners()
    for name in ("a", "b", "a"):
        listeners.add(b"1", name)
    with pytest.raises(UsageError, match="listen to all"):
        listeners.add(b"1", "c")
    listeners.add(b"2", "c")


class Slow(RawClient):
    """A client that reads when it is told to, and whose queue takes few messages."""

    def __init__(self, context: zmq.Context[Any], house: Served) -> None:
        super().__init__(context, house.entry, RCVHWM=1)
        self.ask(protocol.hello(holder="slow", user="ada"))


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


def _client_on(lines: ReconnectTable, peer: bytes) -> bytes:
    return lines.on.get(peer, peer)


def test_events_are_numbered_and_only_the_latest_are_kept() -> None:
    ring = EventRing(most_events=3)
    for number in range(5):
        ring.add(told.SessionOpened(session=str(number)))
    assert ring.last == 5
    assert [(number, event.session) for number, event in ring.after(3) or ()] == [(4, "3"), (5, "4")]
    assert len(ring.after(2) or ()) == 3
    assert ring.after(5) == []
    assert ring.after(1) is None
    assert ring.after(6) is None  # of another engine


def test_a_client_is_known_by_its_token_and_spoken_to_on_its_latest_connection() -> None:
    lines = ReconnectTable(LargeMessages())
    assert lines.greet(b"1", "", LOCAL) == _client_on(lines, b"1") == b"1"
    name = lines.greet(b"2", "secret", LOCAL)
    assert _client_on(lines, b"2") == name != b"2"
    assert lines.greet(b"3", "secret", LOCAL) == name
    assert lines.clients[name].peer == b"3"
    assert _client_on(lines, b"2") == b"2"
    assert lines.greet(b"4", "secret", key=b"of another person") != name
    assert [lines.clients[name].take(number) for number in (1, 3, 3, 2, 4)] == [True, True, False, True, True]
    lines.clients[name].confirm(3)
    assert [lines.clients[name].take(number) for number in (1, 2, 3, 4, 5)] == [False, False, False, False, True]
    lines.sweep(lambda known: known == name)
    assert len(lines.clients) == 1


def test_a_client_whose_connection_is_anothers_now_is_spoken_to_nowhere() -> None:
    lines = ReconnectTable(LargeMessages())
    name = lines.greet(b"1", "secret", LOCAL)
    lines.lose(b"1")
    assert (_client_on(lines, b"1"), lines.clients[name].peer) == (b"1", lines_module.NOWHERE)
    other = lines.greet(b"1", "other", LOCAL)
    assert lines.greet(b"2", "secret", LOCAL) == name
    assert (_client_on(lines, b"1"), lines.clients[name].peer) == (other, b"2")
    assert lines.greet(b"2", "other", LOCAL) == other
    lines.forget(name)
    assert (_client_on(lines, b"2"), _client_on(lines, b"1")) == (other, b"1")


def test_a_reply_that_is_kept_twice_is_counted_once() -> None:
    lines = ReconnectTable(LargeMessages())
    name = lines.greet(b"1", "secret", LOCAL)
    for size in (3, 5):
        lines.clients[name].outgoing(7, told.Departed(), [b"x" * size])
    (client,) = lines.clients.values()
    assert client.kept.bytes == bytes_of([b"x" * 5])
    lines.clients[name].confirm(7)
    assert client.kept.bytes == 0


def test_replies_are_kept_up_to_a_bound_for_all_clients_of_a_person(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept_replies, "MOST_BYTES_OF_REPLIES", bytes_of([b"x" * 10]) * 2)
    lines = ReconnectTable(LargeMessages())
    first, second = (lines.greet(peer, peer.decode(), key=b"of ada") for peer in (b"1", b"2"))
    other = lines.greet(b"3", "3", key=b"of bert")
    for name, number in ((first, 1), (second, 1), (other, 1), (first, 2)):
        lines.clients[name].outgoing(number, told.Departed(), [b"x" * 10])
    of_ada, of_bert = lines.clients[first].kept, lines.clients[other].kept
    assert (of_ada.numbers(first), of_ada.numbers(second), of_bert.numbers(other)) == ({2}, {1}, {1})
    lines.forget(first)
    assert of_ada.bytes == bytes_of([b"x" * 10])
    assert lines.clients[lines.greet(b"4", "4", key=b"of ada")].kept is of_ada
    lines.forget(second)
    assert of_ada.bytes == len(of_ada) == 0


def test_so_many_replies_are_kept_at_most_the_latest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept_replies, "MOST_REPLIES", 2)
    kept = kept_replies.KeptReplies()
    for number in (1, 2, 3):
        kept.keep(b"1", number, [b"x"])
    assert kept.numbers(b"1") == {2, 3}


def test_replies_are_let_go_when_a_client_was_not_heard_for_long() -> None:
    now = [0.0]
    lines = ReconnectTable(LargeMessages(), clock=lambda: now[0])
    name = lines.greet(b"1", "secret", LOCAL)
    lines.clients[name].take(2)
    lines.clients[name].outgoing(2, told.Departed(), [b"reply"])
    again = codec.Envelope[ask.Request](id=2, body=ask.Open(session="paris"))
    now[0] = lines_module.KEPT_SECONDS
    lines.sweep(lambda known: True)
    assert lines.clients[name].reply_again(again) == [b"reply"]
    now[0] += 1
    assert _client_on(lines, b"1") == name  # is no word from it
    lines.sweep(lambda known: True)
    assert lines.clients[name].reply_again(again) == codec.encode_reply(2, lines_module.NOT_KEPT)
