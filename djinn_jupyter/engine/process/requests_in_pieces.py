"""Large requests of clients on other machines, put together from the pieces in which they come (wire/pieces.py).
Nothing of a request is done before all of it is there, so one that ends half-way has changed nothing. Its pieces are
its client's alone: no other adds to them, whatever number it names.

Called from the thread of the service; pieces are unpacked in a thread of their own, one after the other.
"""

from __future__ import annotations

import mmap
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import accumulate
from typing import Final

from djinn_jupyter.amounts import spell_bytes
from djinn_jupyter.engine.process.unread import PERSON_BYTES
from djinn_jupyter.errors import DjinnError, EngineError, MalformedMessage, MessageTooLarge, OverQuota, UsageError
from djinn_jupyter.wire import codec
from djinn_jupyter.wire.keys import PublicKey
from djinn_jupyter.wire.packing import unpack
from djinn_jupyter.wire.pieces import PieceTaken, PutPiece
from djinn_jupyter.wire.quotas import NO_QUOTA, Quota
from djinn_jupyter.wire.replies import Failed, Reply

Answer = Callable[[Reply], None]
ALIGNED: Final = 64  # bytes: an array begins at a multiple, as one that was allocated does
FRAME_BYTES: Final = 256  # of Python for a frame, and where it is aligned
MOST_REQUESTS: Final = 1000  # of one person: each is a mapping, and a process has 65,530
NOT_WHOLE: Final = "The engine has not all of this request any more, and nothing of it was done; ask again."
NOT_TAKEN: Final = (
    f"The engine does not take this request: {spell_bytes(PERSON_BYTES)} of requests of yours are on their way. Let "
    "them arrive or interrupt them, and ask again; nothing of it was done."
)
TOO_MANY: Final = (
    f"The engine does not take this request: {MOST_REQUESTS:,} requests of yours are on their way. Let them arrive or "
    "interrupt them, and ask again; nothing of it was done."
)


def no_quota(person: str) -> Quota:
    """Return no limit: there are no persons."""
    return NO_QUOTA


class _IncomingRequest:
    """A request of which the first `end` of `size` bytes are there. Its memory is taken as they come."""

    def __init__(self, sizes: tuple[int, ...], person: PublicKey) -> None:
        codec.require_sizes(sizes)
        self.sizes, self.size, self.person, self.end = sizes, sum(sizes), person, 0
        self.held = _held(sizes)
        *begins, taken = accumulate((-(-size // ALIGNED) * ALIGNED for size in sizes), initial=0)
        try:
            memory = memoryview(mmap.mmap(-1, max(taken, 1)))
        except OSError:
            raise MessageTooLarge(f"The engine has no memory for a request of {spell_bytes(self.size)}.") from None
        self.frames = [memory[begin : begin + size] for begin, size in zip(begins, sizes, strict=True)]

    @property
    def is_whole(self) -> bool:
        return self.end == self.size

    def put(self, piece: PutPiece) -> None:
        """Add a piece. One that is there already, after a line was lost, changes nothing."""
        if piece.start > self.end:
            raise EngineError(NOT_WHOLE)
        if piece.start + piece.count > self.size:
            raise UsageError("That is no piece of this request.")
        new = self.end - piece.start
        if new < piece.count:
            self._write(self.end, _content(piece)[new:])
            self.end = piece.start + piece.count

    def _write(self, start: int, content: memoryview) -> None:
        """Write bytes to the frames, which are numbered one behind the other."""
        for frame in self.frames:
            if start >= frame.nbytes:
                start -= frame.nbytes
                continue
            part = content[: frame.nbytes - start]
            frame[start : start + part.nbytes] = part
            content, start = content[part.nbytes :], 0
            if not content:
                return


class RequestsInPieces:
    """One person has at most MOST_REQUESTS and PERSON_BYTES here, beside one request of any size, and never more than
    their quota of host memory (`quota_of` the person's name)."""

    def __init__(self, quota_of: Callable[[str], Quota] = no_quota) -> None:
        self._quota_of = quota_of
        self._incoming: dict[tuple[bytes, int], _IncomingRequest] = {}
        self._unpacker: ThreadPoolExecutor | None = None

    def __len__(self) -> int:
        return len(self._incoming)

    def put(self, client: bytes, piece: PutPiece, answer: Answer, key: PublicKey, person: str | None) -> None:
        """Add a piece to a request of a client, which is the person's of this key, and answer it later, from another
        thread. Raises a DjinnError where the request is not taken."""
        incoming = self._incoming.get((client, piece.of))
        if piece.sizes and (incoming is None or incoming.sizes != piece.sizes):
            incoming = self._begin(client, piece, key, person)
        if incoming is None:
            raise EngineError(NOT_WHOLE)
        self._unpacking().submit(_answer_with, incoming, piece, answer)

    def take(self, client: bytes, number: int) -> list[codec.WireFrame]:
        """Take out the frames of a request. EngineError where they are not all there."""
        incoming = self._incoming.pop((client, number), None)
        if incoming is None or not incoming.is_whole:
            raise EngineError(NOT_WHOLE)
        return [*incoming.frames]

    def drop(self, client: bytes, number: int) -> None:
        """Let go of what has come of a request."""
        self._incoming.pop((client, number), None)

    def keep_only(self, known: Callable[[bytes], bool]) -> None:
        """Let go of the requests of clients that are not known any more."""
        for client, number in [key for key in self._incoming if not known(key[0])]:
            self.drop(client, number)

    def close(self) -> None:
        """Let go of all requests, and return when no piece is under way."""
        self._incoming.clear()
        if self._unpacker is not None:
            self._unpacker.shutdown(cancel_futures=True)

    def _begin(self, client: bytes, piece: PutPiece, key: PublicKey, person: str | None) -> _IncomingRequest:
        self.drop(client, piece.of)
        self._require_room(_held(piece.sizes), key, person)
        incoming = self._incoming[client, piece.of] = _IncomingRequest(piece.sizes, key)
        return incoming

    def _require_room(self, size: int, key: PublicKey, person: str | None) -> None:
        theirs = [one.held for one in self._incoming.values() if one.person == key]
        if len(theirs) >= MOST_REQUESTS:
            raise EngineError(TOO_MANY)
        on_their_way = sum(theirs)
        if on_their_way and on_their_way + size > PERSON_BYTES:
            raise EngineError(NOT_TAKEN)
        most = self._quota_of(person).host if person is not None else None
        if most is not None and on_their_way + size > most:
            others = f", and {spell_bytes(on_their_way)} are on their way" if on_their_way else ""
            raise OverQuota(
                f"{person}'s quota of host memory is {spell_bytes(most)}: this request has {spell_bytes(size)}, which "
                f"lie there until it is whole{others}. Send less, or ask the engine's user for more (`djinn quota "
                f"{person}`)."
            )

    def _unpacking(self) -> ThreadPoolExecutor:
        if self._unpacker is None:
            self._unpacker = ThreadPoolExecutor(max_workers=1, thread_name_prefix="djinn-unpack")
        return self._unpacker


def _held(sizes: tuple[int, ...]) -> int:
    """Return the bytes that a request of these frames takes here."""
    return sum(sizes) + FRAME_BYTES * len(sizes)


def _content(piece: PutPiece) -> memoryview:
    content = piece.content.data
    if piece.stride is not None:
        content = memoryview(unpack(content, piece.stride, piece.count))
    if content.nbytes != piece.count:
        raise MalformedMessage(f"A piece of {piece.count} bytes came as {content.nbytes}.")
    return content


def _answer_with(incoming: _IncomingRequest, piece: PutPiece, answer: Answer) -> None:
    began = time.perf_counter()
    try:
        incoming.put(piece)
    except DjinnError as error:
        answer(Failed.of(error))
    except Exception as error:  # noqa: BLE001  the request's edge
        answer(Failed.of(EngineError(f"A piece could not be taken ({type(error).__name__}: {error}).")))
    else:
        answer(PieceTaken(seconds=time.perf_counter() - began))
