"""The speed of a line, measured by what has really arrived on it: its round trip, and the bytes that it carries in a
second. From them follow the size of a piece, how many are asked for at once, and whether packing makes one arrive
sooner."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from itertools import accumulate
from typing import Final, Literal, Protocol, TypeVar

from djinn_jupyter.errors import (
    DjinnError,
    EngineError,
    EngineUnavailable,
    MalformedMessage,
    MessageTooLarge,
    WireError,
)
from djinn_jupyter.units import spell_bytes
from djinn_jupyter.wire import codec
from djinn_jupyter.wire.arrays import Array, pack_where_fewer, unpack
from djinn_jupyter.wire.base import ReplyBase
from djinn_jupyter.wire.pieces import (
    MOST_BYTES,
    Assemble,
    DropPieces,
    InPieces,
    PieceRead,
    PieceTaken,
    PutPiece,
    ReadPiece,
    is_large,
    part_of,
)
from djinn_jupyter.wire.request_base import RequestBase
from djinn_jupyter.wire.requests import Request

FIRST_BYTES: Final = 64 * 2**10
LEAST_BYTES: Final = 16 * 2**10
PIECE_SECONDS: Final = 0.1  # that a piece is on the line; an interrupt waits for no more than those asked for
LEAST_AT_ONCE: Final = 3
TRIED_AGAIN: Final = 32  # pieces after which packing is tried once more
_ARRIVALS: Final = 8


class LineRate:
    """`round_trip` is the shortest one seen, in seconds, and `bytes_per_second` the rate of the latest pieces; None
    before the first."""

    def __init__(self) -> None:
        self.round_trip: float | None = None
        self.bytes_per_second: float | None = None
        self._arrivals: deque[tuple[float, int]] = deque(maxlen=_ARRIVALS)

    def note_round_trip(self, seconds: float) -> None:
        self.round_trip = seconds if self.round_trip is None else min(seconds, self.round_trip)

    def begin(self, now: float) -> None:
        """Note that bytes are asked for of a line on which none were under way."""
        self._arrivals.clear()
        self._arrivals.append((now, 0))

    def note(self, now: float, count: int) -> None:
        """Note that so many bytes of a piece have arrived."""
        (began, _), *later = self._arrivals
        self._arrivals.append((now, count))
        self.bytes_per_second = (sum(size for _, size in later) + count) / max(now - began, 1e-6)

    @property
    def piece_bytes(self) -> int:
        """The size of the next piece: what the line carries in PIECE_SECONDS."""
        rate = self.bytes_per_second
        return FIRST_BYTES if rate is None else int(min(MOST_BYTES, max(LEAST_BYTES, rate * PIECE_SECONDS)))

    @property
    def at_once(self) -> int:
        """The number of pieces that are asked for at once, so that the line is not empty during a round trip."""
        return max(LEAST_AT_ONCE, 1 + round((self.round_trip or 0.0) / PIECE_SECONDS))


class PackedRate:
    """The gain of packing, by the latest packed piece: the share of the bytes that it leaves, and how long the slower
    side takes for a byte. It is tried again now and then, for a reply's arrays may differ."""

    def __init__(self) -> None:
        self._share, self._seconds = 0.0, 0.0  # the first piece is packed, to see
        self._plain = 0  # pieces since

    def note(self, size: int, packed: int, seconds: float) -> None:
        """Note a piece of `size` bytes, packed to fewer in so many seconds, of the slower side."""
        self._share, self._seconds, self._plain = packed / size, seconds / size, 0

    def packs_next(self, bytes_per_second: float | None) -> bool:
        """Return whether the next piece arrives sooner packed. Both sides work while the line carries others."""
        if bytes_per_second is None or self._plain >= TRIED_AGAIN:
            self._plain = 0
            return True
        sooner = max(self._share / bytes_per_second, self._seconds) < 1 / bytes_per_second
        self._plain += not sooner
        return sooner


# The progress of a large message that crosses a line in pieces. Values only.

Way = Literal["received", "sent"]
_WORDS: Final = {"received": ("receiving", "come"), "sent": ("sending", "gone")}


@dataclass(frozen=True, slots=True, kw_only=True)
class SoFar:
    """`done` of `total` bytes, as they are when they are unpacked; `carried` are those that crossed the line."""

    way: Way
    done: int
    total: int
    carried: int
    seconds: float

    @property
    def share(self) -> float:
        return self.done / self.total

    @property
    def ended(self) -> str:
        """The line that stays when it is over."""
        if self.done < self.total:
            return f"given up: {spell_bytes(self.done)} of {spell_bytes(self.total)} had {_WORDS[self.way][1]}"
        return f"{self.way} {spell_bytes(self.total)} in {self.seconds:.0f} s, {self._rate} over the line"

    @property
    def _rate(self) -> str:
        return f"{spell_bytes(self.carried / self.seconds)}/s"

    def __str__(self) -> str:
        said = f"{_WORDS[self.way][0]} {spell_bytes(self.done)} of {spell_bytes(self.total)}"
        if not self.done:
            return said
        left = self.seconds * (self.total - self.done) / self.done
        return f"{said}, {self._rate}, about {left:.0f} s left"


# One large reply that arrives in pieces. Knows no sockets: it posts its requests, and takes their replies.

PostPiece = Callable[[ReadPiece, Callable[["PieceRead | DjinnError"], None]], object]
Ended = Callable[["list[codec.WireFrame] | DjinnError"], None]


class Arrival:
    """The reply to request number `of`. `ended` is called once, with its frames or the error that ends it, unless it is
    given up."""

    def __init__(self, of: int, told: InPieces, *, post: PostPiece, rate: LineRate, ended: Ended) -> None:
        self._of, self._post, self._rate, self._ended = of, post, rate, ended
        self._sizes, self._total = told.sizes, sum(told.sizes)
        self._began, self._packed = time.monotonic(), PackedRate()
        self._asked = self._received = self._carried = self._under_way = 0
        self._content = bytearray()
        self._over = False

    @property
    def progress(self) -> SoFar:
        """The part that has come; read from any thread."""
        seconds = max(time.monotonic() - self._began, 1e-6)
        return SoFar(way="received", done=self._received, total=self._total, carried=self._carried, seconds=seconds)

    def begin(self) -> None:
        try:
            codec.require_sizes(self._sizes)
            self._content = bytearray(self._total)
        except WireError as error:
            self._end(error)
        except MemoryError:
            self._end(MessageTooLarge(f"There is no memory for this reply of {spell_bytes(self._total)}."))
        else:
            self._rate.begin(time.monotonic())
            self._go_on()

    def give_up(self) -> None:
        """Ask for no more, and call nothing."""
        self._over = True

    def _go_on(self) -> None:
        while not self._over and self._asked < self._total and self._under_way < self._rate.at_once:
            self._ask()
        if not self._over and self._received == self._total:
            self._end(self._frames())

    def _ask(self) -> None:
        request = ReadPiece(
            of=self._of,
            start=self._asked,
            count=min(self._rate.piece_bytes, self._total - self._asked),
            packed=self._packed.packs_next(self._rate.bytes_per_second),
        )
        self._asked += request.count
        self._under_way += 1
        self._post(request, lambda outcome: self._take(request, outcome))

    def _take(self, request: ReadPiece, outcome: PieceRead | DjinnError) -> None:
        if self._over:
            return
        self._under_way -= 1
        try:
            if isinstance(outcome, DjinnError):
                raise outcome
            self._put(request, outcome)
        except DjinnError as error:
            self._end(error)
        else:
            self._go_on()

    def _put(self, request: ReadPiece, piece: PieceRead) -> None:
        now, carried = time.monotonic(), piece.content.nbytes
        self._rate.note(now, carried)
        content = piece.content.data
        if piece.stride is not None:
            content = memoryview(unpack(content, piece.stride, request.count))
        if content.nbytes != request.count:
            raise MalformedMessage(f"A piece of {request.count} bytes came as {content.nbytes}.")
        if request.packed:
            self._packed.note(request.count, carried, max(piece.seconds, time.monotonic() - now))
        self._content[request.start : request.start + request.count] = content
        self._received += request.count
        self._carried += carried

    def _frames(self) -> list[codec.WireFrame]:
        ends = list(accumulate(self._sizes))
        whole = memoryview(self._content)
        return [whole[end - size : end] for size, end in zip(self._sizes, ends, strict=True)]

    def _end(self, outcome: list[codec.WireFrame] | DjinnError) -> None:
        self._over = True
        self._ended(outcome)


# The requests of a connection that wait for their reply, and the large replies that arrive in pieces.

Answer = TypeVar("Answer", bound=ReplyBase)
Answered = Callable[[ReplyBase | DjinnError], None]
AnsweredBy = Callable[[Answer | DjinnError], None]
GIVEN_UP = "The reply was given up on its way; ask for it again."


class Post(Protocol):
    def __call__(self, request: RequestBase[Answer], answered: AnsweredBy[Answer], /) -> int: ...


@dataclass(slots=True)
class Sent:
    """A request without its reply, and the frames to send again on the next line; a Hello is not sent again."""

    frames: list[codec.WireFrame]
    answered: Answered
    given_up: bool = False  # a large reply to it is not read
    in_pieces: bool = False  # it leaves in pieces


def checked(request: RequestBase[Answer], answered: AnsweredBy[Answer]) -> Answered:
    """Return the callback of a request for whatever comes: a reply that does not answer it is a WireError."""

    def told(outcome: ReplyBase | DjinnError) -> None:
        if isinstance(outcome, DjinnError) or request.is_answered_by(outcome):
            answered(outcome)
        else:
            answered(WireError(f"The engine answered {type(request).__name__} with {type(outcome).__name__}."))

    return told


def settle(answer: asyncio.Future[Answer], outcome: Answer | DjinnError) -> None:
    """Set the result or the error of a future, unless its asker has stopped waiting."""
    if answer.done():
        return
    if isinstance(outcome, DjinnError):
        answer.set_exception(outcome)
    else:
        answer.set_result(outcome)


class Arrivals:
    """`rate` is that of the line. `arrived` is called with the number of a request, and the frames of its reply when
    they are all there."""

    def __init__(self, post: Post, arrived: Callable[[int, Sent, list[codec.WireFrame]], None]) -> None:
        self.rate = LineRate()
        self.latest: SoFar | None = None  # of the one that ended last
        self._post, self._arrived = post, arrived
        self._under_way: dict[int, tuple[Sent, Arrival]] = {}

    @property
    def progress(self) -> SoFar | None:
        """The part of the oldest one that has come; read from any thread."""
        return next((arrival.progress for _, arrival in tuple(self._under_way.values())), None)

    def begin(self, number: int, told: InPieces, sent: Sent) -> None:
        """Read the reply to a request."""
        arrival = Arrival(
            number, told, post=self._post, rate=self.rate, ended=lambda outcome: self._end(number, outcome)
        )
        self._under_way[number] = sent, arrival
        if sent.given_up:
            self.give_up(number)
        else:
            arrival.begin()

    def give_up(self, number: int) -> bool:
        """Read no more of a reply. Return False where none of that number is under way."""
        if number not in self._under_way:
            return False
        self._under_way[number][1].give_up()
        self._end(number, EngineError(GIVEN_UP))
        return True

    def line_is_back(self) -> None:
        """Begin to measure again: the time without a line says nothing of its rate."""
        self.rate.begin(time.monotonic())

    def asked_again(self) -> dict[int, Sent]:
        """Return the requests whose replies went with their engine: they begin anew at the next one."""
        under_way, self._under_way = self._under_way, {}
        for _, arrival in under_way.values():
            arrival.give_up()
        return {number: sent for number, (sent, _) in under_way.items()}

    def lose(self, sentence: str) -> None:
        """End all of them, which no engine answers any more."""
        for sent in self.asked_again().values():
            sent.answered(EngineUnavailable(sentence))

    def _end(self, number: int, outcome: list[codec.WireFrame] | DjinnError) -> None:
        sent, arrival = self._under_way.pop(number)
        self.latest = arrival.progress
        self._post(DropPieces(of=number), lambda dropped: None)
        if isinstance(outcome, DjinnError):
            sent.answered(outcome)
        else:
            self._arrived(number, sent, outcome)


# One large request that leaves in pieces. Knows no sockets: it posts the pieces, and takes the replies to them.

PutPieces = Callable[[PutPiece, Callable[["PieceTaken | DjinnError"], None]], object]
UploadEnded = Callable[["DjinnError | None"], None]


class Upload:
    """Request number `of`, which has these frames. `ended` is called once, with None when the engine has all of them,
    or with the error that ends it, unless it is given up."""

    def __init__(
        self, of: int, frames: list[codec.WireFrame], *, post: PutPieces, rate: LineRate, ended: UploadEnded
    ) -> None:
        self._of, self._frames, self._post, self._rate, self._ended = of, frames, post, rate, ended
        self._sizes = tuple(memoryview(frame).nbytes for frame in frames)
        self._total = sum(self._sizes)
        self._began, self._packed = time.monotonic(), PackedRate()
        self._put = self._done = self._carried = self._under_way = 0
        self._over = False

    @property
    def progress(self) -> SoFar:
        """The part that the engine has; read from any thread."""
        seconds = max(time.monotonic() - self._began, 1e-6)
        return SoFar(way="sent", done=self._done, total=self._total, carried=self._carried, seconds=seconds)

    def begin(self) -> None:
        self._rate.begin(time.monotonic())
        self._go_on()

    def give_up(self) -> None:
        """Put no more, and call nothing."""
        self._over = True

    def _go_on(self) -> None:
        while not self._over and self._put < self._total and self._under_way < self._rate.at_once:
            self._put_next()
        if not self._over and self._done == self._total:
            self._end(None)

    def _put_next(self) -> None:
        count = min(self._rate.piece_bytes, self._total - self._put)
        content, stride, began = part_of(self._frames, self._put, count), None, time.monotonic()
        packs = self._packed.packs_next(self._rate.bytes_per_second)
        if packs:
            content, stride = pack_where_fewer(content)
        seconds = time.monotonic() - began
        piece = PutPiece(
            of=self._of,
            start=self._put,
            count=count,
            content=Array.of_bytes(content),
            stride=stride,
            sizes=() if self._put else self._sizes,
        )
        self._put += count
        self._under_way += 1
        self._post(piece, lambda outcome: self._take(piece, seconds if packs else None, outcome))

    def _take(self, piece: PutPiece, packing: float | None, outcome: PieceTaken | DjinnError) -> None:
        """Take the reply to a piece, whose packing took so many seconds, None where it was not tried."""
        if self._over:
            return
        self._under_way -= 1
        if isinstance(outcome, DjinnError):
            return self._end(outcome)
        carried = piece.content.nbytes
        self._rate.note(time.monotonic(), carried)
        if packing is not None:
            self._packed.note(piece.count, carried, max(packing, outcome.seconds))
        self._done += piece.count
        self._carried += carried
        self._go_on()

    def _end(self, error: DjinnError | None) -> None:
        self._over = True
        self._ended(error)


# The large requests of a connection that leave in pieces, so that what else is asked for need not wait for them, an
# interrupt takes them back, and a line that was lost goes on where it was.

TAKEN_BACK: Final = "The request was taken back on its way, and nothing of it was done; ask again."


class Uploads:
    """`rate` is that of the line to the engine. `send` sends a message as it is; `failed` is called with the number of
    a request that could not be sent whole, of which nothing was done."""

    def __init__(
        self, post: Post, send: Callable[[list[codec.WireFrame]], object], failed: Callable[[int, DjinnError], object]
    ) -> None:
        self.latest: SoFar | None = None  # of the one that ended last
        self._post, self._send, self._failed = post, send, failed
        self.rate = LineRate()
        self._under_way: dict[int, Upload] = {}
        self._there: set[int] = set()

    @property
    def progress(self) -> SoFar | None:
        """The part of the oldest one that has gone; read from any thread."""
        return next((upload.progress for upload in tuple(self._under_way.values())), None)

    def send(self, number: int, frames: list[codec.WireFrame]) -> None:
        """Send a request, or go on with it on another line, where the pieces without an answer are sent again."""
        if number in self._there:
            self._assemble(number)
        elif number not in self._under_way:
            self._begin(number, frames)

    def give_up(self, number: int) -> bool:
        """Send no more of a request. Return False where none of that number is under way."""
        upload = self._under_way.pop(number, None)
        if upload is None:
            return False
        upload.give_up()
        self.latest = upload.progress
        self._post(DropPieces(of=number), lambda dropped: None)
        return True

    def answered(self, number: int) -> None:
        """Note that a request has its reply."""
        self._there.discard(number)

    def line_is_back(self) -> None:
        """Begin to measure again: the time without a line says nothing of its rate."""
        self.rate.begin(time.monotonic())

    def begin_anew(self) -> None:
        """Forget what the engine has: another one is there, which has nothing."""
        for upload in self._under_way.values():
            upload.give_up()
        self._under_way.clear()
        self._there.clear()

    def _begin(self, number: int, frames: list[codec.WireFrame]) -> None:
        upload = Upload(number, frames, post=self._post, rate=self.rate, ended=lambda error: self._end(number, error))
        self._under_way[number] = upload
        upload.begin()

    def _end(self, number: int, error: DjinnError | None) -> None:
        if error is not None:
            self.give_up(number)
            self._failed(number, error)
            return
        self.latest = self._under_way.pop(number).progress
        self._there.add(number)
        self._assemble(number)

    def _assemble(self, number: int) -> None:
        self._send(codec.encode_checked(number, Assemble()))


def goes_in_pieces(request: Request, frames: list[codec.WireFrame]) -> bool:
    return not isinstance(request, PutPiece) and is_large(frames)
