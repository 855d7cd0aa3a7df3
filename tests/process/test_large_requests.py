"""While a large request is read, others are answered, and what its own client sends meanwhile keeps its place."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from djinn_jupyter.engine.process import large_requests
from djinn_jupyter.engine.process.admission import LOCAL
from djinn_jupyter.engine.process.large_requests import FREED_AT_ONCE, MOST_WAITING, LargeRequests, Read
from djinn_jupyter.errors import EngineError, MalformedMessage
from djinn_jupyter.methods.circuits.request import AttributeEdges
from djinn_jupyter.methods.datasets.request import Score
from djinn_jupyter.wire import codec
from djinn_jupyter.wire import requests as ask

LARGE = codec.encode(1, ask.Detokenize(tokens=tuple(range(500_000))))
PING = codec.encode(2, ask.Ping())


class Heard:
    """What was read, in order: the numbers of requests, and errors."""

    def __init__(self) -> None:
        self.requests = LargeRequests({})
        self.read: list[Any] = []

    def come(self, peer: bytes, frames: list[Any], key: bytes = LOCAL) -> None:
        self.requests.read(peer, key, frames, self._then)

    def _then(self, read: Read) -> None:
        try:
            self.read.append(read().id)
        except (MalformedMessage, EngineError) as error:
            self.read.append(type(error))


def test_others_are_answered_between_the_parts_and_its_own_client_waits_behind() -> None:
    heard, turns = Heard(), 0
    heard.come(b"one", LARGE)
    heard.come(b"one", codec.encode(3, ask.Ping()))
    heard.come(b"one", [*LARGE, b"a frame too many"])
    while heard.requests.busy:
        heard.come(b"other", PING)
        heard.requests.go_on()
        turns += 1
    assert turns > 40
    assert [one for one in heard.read if one != 2] == [1, 3, MalformedMessage]
    assert heard.read.count(2) == turns


def test_a_person_has_a_bounded_number_of_bytes_waiting_on_all_connections() -> None:
    heard, many = Heard(), MOST_WAITING // len(LARGE[0])
    for number in range(many + 2):
        heard.come(b"%d" % (number % 3), LARGE, b"key")
        heard.come(b"own user", LARGE)
    assert heard.read == [EngineError, EngineError]
    heard.come(b"another", PING, b"another key")
    assert heard.read[-1] == 2


def test_what_waits_is_dropped_where_its_routing_id_is_another_persons_now() -> None:
    heard = Heard()
    heard.come(b"one", LARGE, b"key")
    heard.come(b"one", codec.encode(3, ask.Ping()), b"key")
    heard.come(b"one", codec.encode(4, ask.Ping()), b"another key")
    assert (heard.read, heard.requests.busy) == ([4], False)


def test_connections_take_turns_however_many_there_are() -> None:
    alone, many = Heard(), Heard()
    alone.come(b"one", LARGE)
    for number in range(3):
        many.come(b"%d" % number, LARGE)
    assert turns_of(many.requests) == 3 * turns_of(alone.requests)
    assert many.read == [1, 1, 1]


def turns_of(requests: LargeRequests) -> int:
    """Read all requests; return the number of turns that it took."""
    turns = 0
    while requests._waiting:
        requests.go_on()
        turns += 1
    return turns


def test_a_long_list_is_freed_a_few_entries_at_a_turn_once_nobody_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(large_requests, "FREED_SECONDS", 0.0)
    requests, read = LargeRequests({}), list[Any]()
    pairs = tuple((number, number) for number in range(1000, 41_000))
    frames = codec.encode(1, AttributeEdges(session="a", corrupted=(1,), clean=(1,), metric="m", chosen=pairs))
    requests.read(b"one", LOCAL, frames, lambda done: read.append(done().body))
    turns_of(requests)
    entry, kept = read[0].chosen[0], requests._lists[0][1]
    requests.go_on()
    assert (sys.getrefcount(entry), len(kept)) == (4, len(pairs))  # by the list, its entries, here, and the question
    read.clear()
    for left in range(len(pairs) - FREED_AT_ONCE, -1, -FREED_AT_ONCE):
        requests.go_on()
        assert (len(kept), requests.busy) == (left, left > 0)
    assert sys.getrefcount(entry) == 2


def test_lists_within_lists_are_freed_too() -> None:
    requests, read = LargeRequests({}), list[Any]()
    lines = (*[tuple(range(1000, 101_000))] * 5, (1, 2, 3))
    frames = codec.encode(1, Score(session="a", prompts=lines))
    requests.read(b"one", LOCAL, frames, lambda done: read.append(done().body))
    turns_of(requests)
    assert len(requests._lists) == 6
    read.clear()
    for _ in range(1000):
        requests.go_on()
    assert not requests._lists


def test_what_fails_to_take_a_request_leaves_none_of_it_behind() -> None:
    requests = LargeRequests({})

    def failing(read: Read) -> None:
        raise OSError("no file descriptor")

    requests.read(b"one", LOCAL, LARGE, failing)
    with pytest.raises(OSError, match="no file descriptor"):
        turns_of(requests)
    assert not requests.busy


@pytest.mark.parametrize("frames", [[], [b""], [b"no message"]])
def test_what_is_no_message_is_refused_at_once(frames: list[Any]) -> None:
    heard = Heard()
    heard.come(b"one", frames)
    assert heard.read == [MalformedMessage]
