"""Large requests: read between others, bounded for a person, and put together from pieces."""

from __future__ import annotations

import random
import sys
from concurrent.futures import Future
from typing import Any

import numpy as np
import pytest

from djinn_jupyter.engine.process import large_requests
from djinn_jupyter.engine.process.large_requests import FREED_AT_ONCE, MOST_WAITING, LargeRequests, Read
from djinn_jupyter.errors import DjinnError, EngineError, MalformedMessage
from djinn_jupyter.methods.circuits.request import AttributeEdges
from djinn_jupyter.methods.datasets.request import Score
from djinn_jupyter.remote.engine import large_messages
from djinn_jupyter.remote.engine.large_messages import MOST_REQUESTS, LargeMessages
from djinn_jupyter.wire import codec
from djinn_jupyter.wire import replies as told
from djinn_jupyter.wire import requests as ask
from djinn_jupyter.wire.arrays import Array, pack
from djinn_jupyter.wire.keys import LOCAL
from djinn_jupyter.wire.pieces import MOST_FRAMES, DropPieces, PieceTaken, PutPiece
from tests.process.large_request import edit, pieces_of_frames

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


def test_pieces_that_come_twice_or_overlap_change_nothing_and_a_gap_is_refused() -> None:
    draw = random.Random(4)
    frames = [draw.randbytes(1001), b"", draw.randbytes(70_000), draw.randbytes(3)]
    content, sizes = b"".join(frames), tuple(map(len, frames))
    incoming = LargeMessages()

    def put(start: int, count: int, packed: bool = False) -> told.Reply:
        part = content[start : start + count]
        sent = pack(part, 4) if packed else part
        piece = PutPiece(
            of=1,
            start=start,
            count=count,
            content=Array.of_bytes(sent),
            stride=4 if packed else None,
            sizes=() if start else sizes,
        )
        return _put(incoming, piece)

    with pytest.raises(EngineError):
        put(5, 3)
    assert isinstance(put(0, 500), PieceTaken)
    with pytest.raises(EngineError, match="not all of this request"):
        LargeMessages().take(b"c", 1)
    assert isinstance(put(600, 10), told.Failed)  # a gap
    assert isinstance(put(0, 500), PieceTaken)  # once more, with its sizes
    assert isinstance(put(200, 40_000, packed=True), PieceTaken)
    assert isinstance(put(len(content) - 1, 2), told.Failed)
    for start in range(40_200, len(content), 9000):
        assert isinstance(put(start, min(9000, len(content) - start), packed=bool(start % 2)), PieceTaken)
    assert [bytes(frame) for frame in incoming.take(b"c", 1)] == frames
    assert not incoming.requests
    incoming.close()


def test_of_one_person_few_requests_are_on_their_way_however_small_they_are() -> None:
    incoming = LargeMessages()
    for number in range(MOST_REQUESTS):
        incoming.put(b"c", _first(number, (2, 2)), _ignore, b"ada", None)
    with pytest.raises(EngineError, match="1,000 requests of yours are on their way"):
        incoming.put(b"d", _first(1, (2, 2)), _ignore, b"ada", None)
    incoming.put(b"e", _first(1, (2, 2)), _ignore, b"bert", None)
    incoming.answer(b"c", DropPieces(of=0), _ignore)
    incoming.put(b"d", _first(1, (2, 2)), _ignore, b"ada", None)
    incoming.close()


def test_a_frame_without_bytes_takes_memory_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(large_messages, "MOST_UNREAD", 2**20)
    incoming, sizes = LargeMessages(), (1, *[0] * (MOST_FRAMES - 1))
    incoming.put(b"c", _first(1, sizes), _ignore, b"ada", None)
    with pytest.raises(EngineError, match="of requests of yours are on their way"):
        incoming.put(b"c", _first(2, sizes), _ignore, b"ada", None)
    incoming.close()


def _first(number: int, sizes: tuple[int, ...]) -> PutPiece:
    return PutPiece(of=number, start=0, count=1, content=Array.of_bytes(b"."), sizes=sizes)


def _ignore(reply: told.Reply) -> None: ...


@pytest.mark.parametrize(
    ("piece", "said"),
    [
        ({"count": 5, "content": b"four"}, "came as 4"),
        ({"count": 4, "content": b"junk", "stride": 1}, "cannot be unpacked"),
        ({"count": 4, "content": b"four", "stride": 3}, "stride of 3"),
        ({"count": 2**20, "content": pack(b"\0" * 2**21, 1), "stride": 1}, "another size when it is unpacked"),
    ],
)
def test_a_piece_that_is_none_is_refused_in_one_sentence(piece: dict[str, Any], said: str) -> None:
    incoming = LargeMessages()
    content = Array.of_bytes(piece.pop("content"))
    failed = _put(incoming, PutPiece(of=1, start=0, content=content, sizes=(10, 2**21), **piece))
    assert said in failed.message
    incoming.close()


@pytest.mark.parametrize(("sizes", "error"), [((2**40,), DjinnError), ((8, 2**40), DjinnError)])
def test_sizes_that_no_message_has_are_refused_before_any_memory_is_taken(
    sizes: tuple[int, ...], error: type[Exception]
) -> None:
    with pytest.raises(error, match="the limit is"):
        _put(LargeMessages(), PutPiece(of=1, start=0, count=1, content=Array.of_bytes(b"x"), sizes=sizes))


def test_an_array_begins_where_one_that_was_allocated_does() -> None:
    """torch reads numbers at an address that is a multiple of their size."""
    incoming, request = LargeMessages(), edit(numbers=1000)
    frames = codec.encode(1, request)
    for piece in pieces_of_frames(1, frames):
        assert isinstance(_put(incoming, piece), PieceTaken)
    head, array = incoming.take(b"c", 1)
    assert codec.decode_request([head, array]).body == request
    assert np.frombuffer(array, dtype=np.float32).ctypes.data % 64 == 0
    incoming.close()


def _put(incoming: LargeMessages, piece: PutPiece) -> told.Reply:
    answered: Future[told.Reply] = Future()
    incoming.put(b"c", piece, answered.set_result, b"key", None)
    return answered.result(60)
