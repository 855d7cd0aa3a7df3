"""The pieces of a large request as an engine puts them together, without sockets."""

from __future__ import annotations

import random
from concurrent.futures import Future
from typing import Any

import numpy as np
import pytest

from djinn_jupyter.errors import DjinnError, EngineError
from djinn_jupyter.remote.engine import large_messages
from djinn_jupyter.remote.engine.large_messages import MOST_REQUESTS, RequestsInPieces
from djinn_jupyter.wire import codec
from djinn_jupyter.wire import replies as told
from djinn_jupyter.wire.arrays import Array, pack
from djinn_jupyter.wire.pieces import MOST_FRAMES, PieceTaken, PutPiece
from tests.process.large_request import edit, pieces_of_frames


def test_pieces_that_come_twice_or_overlap_change_nothing_and_a_gap_is_refused() -> None:
    draw = random.Random(4)
    frames = [draw.randbytes(1001), b"", draw.randbytes(70_000), draw.randbytes(3)]
    content, sizes = b"".join(frames), tuple(map(len, frames))
    incoming = RequestsInPieces()

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
        RequestsInPieces().take(b"c", 1)
    assert isinstance(put(600, 10), told.Failed)  # a gap
    assert isinstance(put(0, 500), PieceTaken)  # once more, with its sizes
    assert isinstance(put(200, 40_000, packed=True), PieceTaken)
    assert isinstance(put(len(content) - 1, 2), told.Failed)
    for start in range(40_200, len(content), 9000):
        assert isinstance(put(start, min(9000, len(content) - start), packed=bool(start % 2)), PieceTaken)
    assert [bytes(frame) for frame in incoming.take(b"c", 1)] == frames
    assert len(incoming) == 0
    incoming.close()


def test_of_one_person_few_requests_are_on_their_way_however_small_they_are() -> None:
    incoming = RequestsInPieces()
    for number in range(MOST_REQUESTS):
        incoming.put(b"c", _first(number, (2, 2)), _ignore, b"ada", None)
    with pytest.raises(EngineError, match="1,000 requests of yours are on their way"):
        incoming.put(b"d", _first(1, (2, 2)), _ignore, b"ada", None)
    incoming.put(b"e", _first(1, (2, 2)), _ignore, b"bert", None)
    incoming.drop(b"c", 0)
    incoming.put(b"d", _first(1, (2, 2)), _ignore, b"ada", None)
    incoming.close()


def test_a_frame_without_bytes_takes_memory_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(large_messages, "MOST_UNREAD", 2**20)
    incoming, sizes = RequestsInPieces(), (1, *[0] * (MOST_FRAMES - 1))
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
    incoming = RequestsInPieces()
    content = Array.of_bytes(piece.pop("content"))
    failed = _put(incoming, PutPiece(of=1, start=0, content=content, sizes=(10, 2**21), **piece))
    assert isinstance(failed, told.Failed)
    assert said in failed.message
    incoming.close()


@pytest.mark.parametrize(("sizes", "error"), [((2**40,), DjinnError), ((8, 2**40), DjinnError)])
def test_sizes_that_no_message_has_are_refused_before_any_memory_is_taken(
    sizes: tuple[int, ...], error: type[Exception]
) -> None:
    with pytest.raises(error, match="the limit is"):
        _put(RequestsInPieces(), PutPiece(of=1, start=0, count=1, content=Array.of_bytes(b"x"), sizes=sizes))


def test_an_array_begins_where_one_that_was_allocated_does() -> None:
    """torch reads numbers at an address that is a multiple of their size."""
    incoming, request = RequestsInPieces(), edit(numbers=1000)
    frames = codec.encode(1, request)
    for piece in pieces_of_frames(1, frames):
        assert isinstance(_put(incoming, piece), PieceTaken)
    head, array = incoming.take(b"c", 1)
    assert codec.decode_request([head, array]).body == request
    assert np.frombuffer(array, dtype=np.float32).ctypes.data % 64 == 0
    incoming.close()


def _put(incoming: RequestsInPieces, piece: PutPiece) -> told.Reply:
    answered: Future[told.Reply] = Future()
    incoming.put(b"c", piece, answered.set_result, b"key", None)
    return answered.result(60)
