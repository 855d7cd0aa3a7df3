"""Clients that outlive their lines, the replies and events that are kept for them, without sockets."""

from __future__ import annotations

import pytest

from djinn_jupyter.engine.process.admission import LOCAL
from djinn_jupyter.engine.process.transport import bytes_of
from djinn_jupyter.remote.engine import lines as kept_replies
from djinn_jupyter.remote.engine import lines as lines_module
from djinn_jupyter.remote.engine.large_messages import RepliesInPieces
from djinn_jupyter.remote.engine.lines import EventRing, Lines
from djinn_jupyter.wire import codec
from djinn_jupyter.wire import replies as told
from djinn_jupyter.wire import requests as ask


def _client_on(lines: Lines, peer: bytes) -> bytes:
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
    lines = Lines(RepliesInPieces())
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
    lines = Lines(RepliesInPieces())
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
    lines = Lines(RepliesInPieces())
    name = lines.greet(b"1", "secret", LOCAL)
    for size in (3, 5):
        lines.clients[name].outgoing(7, told.Departed(), [b"x" * size])
    (client,) = lines.clients.values()
    assert client.kept.bytes == bytes_of([b"x" * 5])
    lines.clients[name].confirm(7)
    assert client.kept.bytes == 0


def test_replies_are_kept_up_to_a_bound_for_all_clients_of_a_person(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept_replies, "MOST_BYTES_OF_REPLIES", bytes_of([b"x" * 10]) * 2)
    lines = Lines(RepliesInPieces())
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
    lines = Lines(RepliesInPieces(), clock=lambda: now[0])
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
