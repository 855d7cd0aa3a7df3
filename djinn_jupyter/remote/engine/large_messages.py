"""Large messages in pieces, and unsent bytes per person: queued here plus queued in ZeroMQ.

A zmq tracker shows that zmq has sent a message. It takes about 60 µs of two threads, so one message in LUMP_BYTES of a
connection is tracked. They leave in order: a sent one confirms all before it. Knows no sockets; called from one thread.
"""

from __future__ import annotations

import mmap
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from itertools import accumulate
from typing import Final, Protocol

from djinn_jupyter.engine.process.seam import bytes_of
from djinn_jupyter.errors import DjinnError, EngineError, MessageTooLarge, OverQuota, UsageError
from djinn_jupyter.units import spell_bytes
from djinn_jupyter.wire import codec, pieces
from djinn_jupyter.wire.arrays import Array, pack_where_fewer
from djinn_jupyter.wire.keys import PublicKey
from djinn_jupyter.wire.nouns import OwnerBudget
from djinn_jupyter.wire.replies import Failed, Reply

MOST_UNREAD: Final = 512 * 2**20
"""That one person may leave unread, beside one message of any size."""
SENTENCES_BYTES: Final = 16 * 2**20  # more, for error sentences; beyond them nothing is sent
LUMP_BYTES: Final = 64 * 2**10
FULL_SECONDS: Final = 30.0  # without reading anything, after which a connection is closed


class Tracker(Protocol):
    @property
    def done(self) -> bool: ...


@dataclass(slots=True)
class _Connection:
    waiting: int = 0
    untracked: int = 0  # bytes that zmq took since the last tracked message
    lumps: deque[tuple[Tracker, int]] = field(default_factory=deque)


@dataclass(slots=True)
class _Person:
    connections: dict[bytes, _Connection] = field(default_factory=dict)
    bytes: int = 0  # of all that waits, and of all lumps
    largest: tuple[Tracker, int] | None = None  # of the lumps since the one before was read
    full_since: float | None = None


class Backpressure:
    """A person is a public key, with connections by their routing ids. The empty key is the engine's own user, whose
    bytes are not counted. Nothing is iterated: a lump is examined when it is queued and when it is sent."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._persons: dict[PublicKey, _Person] = {}

    def has_room(self, person: PublicKey, count: int = 0) -> bool:
        """Return whether a message of so many bytes may be sent to a person."""
        theirs = self._persons.get(person)
        if theirs is None:
            return True
        has_room = self._takes(theirs, count)
        if has_room != (theirs.full_since is None):
            theirs.full_since = None if has_room else self._clock()
        return has_room

    def takes_no_more(self, person: PublicKey) -> bool:
        """Return whether not even an error sentence may be sent to a person."""
        return person in self._persons and not self._takes(self._persons[person], -SENTENCES_BYTES)

    @property
    def full(self) -> tuple[PublicKey, ...]:
        """The persons without room at the last check. May be read from any thread."""
        return tuple(person for person, theirs in tuple(self._persons.items()) if theirs.full_since is not None)

    def is_tracked(self, person: PublicKey, peer: bytes, count: int) -> bool:
        """Return whether to track a message of so many bytes that zmq is to send on this connection."""
        return bool(person) and self._connection(person, peer).untracked + count >= LUMP_BYTES

    def take(self, person: PublicKey, peer: bytes, count: int, tracker: Tracker | None) -> None:
        """Record a message that zmq has taken."""
        if not person:
            return
        connection = self._connection(person, peer)
        connection.untracked += count
        if tracker is not None:
            lump = tracker, connection.untracked
            connection.untracked = 0
            connection.lumps.append(lump)
            theirs = self._persons[person]
            theirs.bytes += lump[1]
            if theirs.largest is None or lump[1] > theirs.largest[1]:
                theirs.largest = lump

    def wait(self, person: PublicKey, peer: bytes, count: int) -> None:
        """Record bytes that begin to wait, or, if negative, that wait no more."""
        if person:
            self._connection(person, peer).waiting += count
            self._persons[person].bytes += count

    def keep_only(self, known: Callable[[bytes], bool]) -> list[bytes]:
        """Drop unknown connections once zmq has sent their messages. Return the connections of persons who have read so
        little that they have had no room for FULL_SECONDS."""
        stuck: list[bytes] = []
        for person, theirs in tuple(self._persons.items()):
            self._look(theirs)
            self.has_room(person)
            for peer, connection in tuple(theirs.connections.items()):
                if not (connection.lumps or connection.waiting or known(peer)):
                    del theirs.connections[peer]
            if not theirs.connections:
                del self._persons[person]
            elif theirs.full_since is not None and self._clock() - theirs.full_since > FULL_SECONDS:
                stuck += [peer for peer, one in theirs.connections.items() if one.lumps or one.waiting]
        return stuck

    def _takes(self, theirs: _Person, count: int) -> bool:
        if theirs.bytes + count > MOST_UNREAD:
            self._look(theirs)
        largest = max(count, theirs.largest[1] if theirs.largest else 0)  # in addition to the limit
        return theirs.bytes + count - largest <= MOST_UNREAD

    def _look(self, theirs: _Person) -> None:
        """Update what a person has read. Less than LUMP_BYTES a connection are not counted."""
        for connection in theirs.connections.values():
            while connection.lumps and connection.lumps[0][0].done:
                theirs.bytes -= connection.lumps.popleft()[1]
                theirs.full_since = None if theirs.full_since is None else self._clock()
        if theirs.largest is not None and theirs.largest[0].done:
            theirs.largest = None

    def _connection(self, person: PublicKey, peer: bytes) -> _Connection:
        return self._persons.setdefault(person, _Person()).connections.setdefault(peer, _Connection())


# Large messages of clients on other machines (wire/pieces.py): requests, assembled from pieces, and replies, kept while
# their clients read them. Nothing of a request is done before all of it has arrived, so an incomplete one changes
# nothing. A message belongs to its client: no other adds to it or reads it, whatever number it names. Called from the
# thread of the service; pieces are packed and unpacked in a thread of their own, one after the other.

Answer = Callable[[Reply], None]
ALIGNED: Final = 64  # bytes: an array begins at a multiple, like an allocated one
FRAME_BYTES: Final = 256  # Python's overhead for a frame, and its alignment
MOST_REQUESTS: Final = 1000  # of one person: each is a mapping, and a process has 65,530
NOT_WHOLE: Final = "The engine has not all of this request any more, and nothing of it was done; ask again."
NOT_TAKEN: Final = (
    f"The engine does not take this request: {spell_bytes(MOST_UNREAD)} of requests of yours are on their way. Let "
    "them arrive or interrupt them, and ask again; nothing of it was done."
)
TOO_MANY: Final = (
    f"The engine does not take this request: {MOST_REQUESTS:,} requests of yours are on their way. Let them arrive or "
    "interrupt them, and ask again; nothing of it was done."
)
NOT_SENT: Final = Failed(
    code="EngineError",
    message=f"The reply to this request is not sent: {spell_bytes(MOST_UNREAD)} of replies to you are on their way. "
    "Let them arrive or interrupt them, and look at the session before you go on.",
)
NOT_THERE: Final = "The rest of this reply is not there any more; ask for it again."


def no_budget(owner: str) -> OwnerBudget:
    """Return no limit."""
    return OwnerBudget()


class _IncomingRequest:
    """A request whose first `end` of `size` bytes have arrived. Its memory is allocated as they arrive."""

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

    def put(self, piece: pieces.PutPiece) -> pieces.PieceTaken:
        """Add a piece. A repeated piece, after a lost connection, changes nothing."""
        began = time.perf_counter()
        if piece.start > self.end:
            raise EngineError(NOT_WHOLE)
        if piece.start + piece.count > self.size:
            raise UsageError("That is no piece of this request.")
        new = self.end - piece.start
        if new < piece.count:
            self._write(self.end, pieces.unpacked(piece.content, piece.stride, piece.count)[new:])
            self.end = piece.start + piece.count
        return pieces.PieceTaken(seconds=time.perf_counter() - began)

    def _write(self, start: int, content: memoryview) -> None:
        """Write bytes to the frames, numbered consecutively."""
        for frame in self.frames:
            if start >= frame.nbytes:
                start -= frame.nbytes
                continue
            part = content[: frame.nbytes - start]
            frame[start : start + part.nbytes] = part
            content, start = content[part.nbytes :], 0
            if not content:
                return


@dataclass(frozen=True, slots=True)
class _KeptReply:
    frames: list[codec.WireFrame]
    person: PublicKey

    def piece(self, asked: pieces.ReadPiece) -> pieces.PieceRead:
        content = pieces.part_of(self.frames, asked.start, asked.count)
        if not asked.packed:
            return pieces.PieceRead(content=Array.of_bytes(content))
        began = time.perf_counter()
        packed, stride = pack_where_fewer(content)
        return pieces.PieceRead(content=Array.of_bytes(packed), stride=stride, seconds=time.perf_counter() - began)


class LargeMessages:
    """By client and number. One person has at most MOST_REQUESTS here, MOST_UNREAD of requests and MOST_UNREAD of
    replies, beside one of any size, and never more of requests than their quota of host memory (`budget_of` the
    person's name)."""

    def __init__(self, budget_of: Callable[[str], OwnerBudget] = no_budget) -> None:
        self._budget_of = budget_of
        self.requests: dict[tuple[bytes, int], _IncomingRequest] = {}
        self.replies: dict[tuple[bytes, int], _KeptReply] = {}
        self._worker: ThreadPoolExecutor | None = None

    def put(self, client: bytes, piece: pieces.PutPiece, answer: Answer, key: PublicKey, person: str | None) -> None:
        """Add a piece to a request of a client of the person with this key, and answer it later, from another thread.
        Raises a DjinnError where the request is refused."""
        incoming = self.requests.get((client, piece.of))
        if piece.sizes and (incoming is None or incoming.sizes != piece.sizes):
            self.requests.pop((client, piece.of), None)
            self._require_room(_held(piece.sizes), key, person)
            incoming = self.requests[client, piece.of] = _IncomingRequest(piece.sizes, key)
        if incoming is None:
            raise EngineError(NOT_WHOLE)
        self._answer_with(partial(incoming.put, piece), "A piece could not be taken", answer)

    def take(self, client: bytes, number: int) -> list[codec.WireFrame]:
        """Take out the frames of a request. EngineError where pieces are missing."""
        incoming = self.requests.pop((client, number), None)
        if incoming is None or not incoming.is_whole:
            raise EngineError(NOT_WHOLE)
        return [*incoming.frames]

    def keep(self, client: bytes, number: int, frames: list[codec.WireFrame], person: PublicKey) -> Reply:
        """Keep a reply. Return the message sent in its place: NOT_SENT where its person has too much here."""
        self.replies.pop((client, number), None)
        of_person = [bytes_of(reply.frames) for reply in self.replies.values() if reply.person == person]
        if of_person and sum(of_person) + bytes_of(frames) > MOST_UNREAD:
            return NOT_SENT
        self.replies[client, number] = _KeptReply(frames, person)
        return pieces.InPieces(sizes=pieces.sizes_of(frames))

    def answer(self, client: bytes, request: pieces.ReadPiece | pieces.DropPieces, answer: Answer) -> None:
        """Answer a request for a piece, later and from another thread, or let go of a message."""
        reply = self.replies.get((client, request.of))
        if isinstance(request, pieces.DropPieces):
            self.requests.pop((client, request.of), None)
            self.replies.pop((client, request.of), None)
            answer(pieces.Dropped())
        elif reply is None:
            answer(Failed.of(EngineError(NOT_THERE)))
        elif request.start + request.count > sum(pieces.sizes_of(reply.frames)):
            answer(Failed.of(UsageError("That is no piece of this reply.")))
        else:
            self._answer_with(partial(reply.piece, request), "A piece could not be read", answer)

    def keep_only(self, known: Callable[[bytes], bool]) -> None:
        """Let go of the messages of clients that are not known any more."""
        self.requests = {key: request for key, request in self.requests.items() if known(key[0])}
        self.replies = {key: reply for key, reply in self.replies.items() if known(key[0])}

    def close(self) -> None:
        """Let go of all of them, and return when no piece is under way."""
        self.keep_only(lambda client: False)
        if self._worker is not None:
            self._worker.shutdown(cancel_futures=True)

    def _answer_with(self, work: Callable[[], Reply], trouble: str, answer: Answer) -> None:
        """Answer with what the thread makes, or with its error."""
        if self._worker is None:
            self._worker = ThreadPoolExecutor(max_workers=1, thread_name_prefix="djinn-pieces")
        self._worker.submit(_answer, work, trouble, answer)

    def _require_room(self, size: int, key: PublicKey, person: str | None) -> None:
        theirs = [one.held for one in self.requests.values() if one.person == key]
        if len(theirs) >= MOST_REQUESTS:
            raise EngineError(TOO_MANY)
        on_their_way = sum(theirs)
        if on_their_way and on_their_way + size > MOST_UNREAD:
            raise EngineError(NOT_TAKEN)
        most = self._budget_of(person).host if person is not None else None
        if most is not None and on_their_way + size > most:
            others = f", and {spell_bytes(on_their_way)} are on their way" if on_their_way else ""
            raise OverQuota(
                f"{person}'s quota of host memory is {spell_bytes(most)}: this request has {spell_bytes(size)}, which "
                f"lie there until it is whole{others}. Send less, or ask the engine's user for more (`djinn quota "
                f"{person}`)."
            )


def _answer(work: Callable[[], Reply], trouble: str, answer: Answer) -> None:
    try:
        reply = work()
    except DjinnError as error:
        reply = Failed.of(error)
    except Exception as error:  # noqa: BLE001  the request's edge
        reply = Failed.of(EngineError(f"{trouble} ({type(error).__name__}: {error})."))
    answer(reply)


def _held(sizes: tuple[int, ...]) -> int:
    """Return the bytes that a request of these frames takes here."""
    return sum(sizes) + FRAME_BYTES * len(sizes)
