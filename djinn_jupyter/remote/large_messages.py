"""Large messages over a line, in pieces. The speed of the line is measured by what has really arrived on it: its round
trip, and the bytes that it carries in a second. From them follow the size of a piece, how many are asked for at once,
and whether packing makes one arrive sooner."""

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from itertools import accumulate
from typing import Final, Literal, Protocol, TypeVar

from djinn_jupyter.errors import DjinnError, EngineError, EngineUnavailable, MessageTooLarge, WireError
from djinn_jupyter.units import spell_bytes
from djinn_jupyter.wire import codec, pieces
from djinn_jupyter.wire.arrays import Array, pack_where_fewer
from djinn_jupyter.wire.base import ReplyBase
from djinn_jupyter.wire.request_base import RequestBase
from djinn_jupyter.wire.requests import Request

FIRST_BYTES: Final = 64 * 2**10
LEAST_BYTES: Final = 16 * 2**10
PIECE_SECONDS: Final = 0.1  # of a piece's transfer; an interrupt waits only for the requested ones
LEAST_AT_ONCE: Final = 3
TRIED_AGAIN: Final = 32  # pieces after which packing is tried once more
_ARRIVALS: Final = 8


class LineRate:
    """`round_trip` is the shortest one so far, in seconds, `bytes_per_second` the latest pieces' rate; None at
    first."""

    def __init__(self) -> None:
        self.round_trip: float | None = None
        self.bytes_per_second: float | None = None
        self._arrivals: deque[tuple[float, int]] = deque(maxlen=_ARRIVALS)

    def note_round_trip(self, seconds: float) -> None:
        self.round_trip = seconds if self.round_trip is None else min(seconds, self.round_trip)

    def begin(self, now: float) -> None:
        """Record a request for bytes on an idle connection."""
        self._arrivals.clear()
        self._arrivals.append((now, 0))

    def note(self, now: float, count: int) -> None:
        """Record the arrival of so many bytes of a piece."""
        (began, _), *later = self._arrivals
        self._arrivals.append((now, count))
        self.bytes_per_second = (sum(size for _, size in later) + count) / max(now - began, 1e-6)

    @property
    def piece_bytes(self) -> int:
        """The size of the next piece: the bytes of PIECE_SECONDS."""
        rate = self.bytes_per_second
        return FIRST_BYTES if rate is None else int(min(pieces.MOST_BYTES, max(LEAST_BYTES, rate * PIECE_SECONDS)))

    @property
    def at_once(self) -> int:
        """The number of pieces to request at once, so that the connection is busy during a round trip."""
        return max(LEAST_AT_ONCE, 1 + round((self.round_trip or 0.0) / PIECE_SECONDS))


class PackedRate:
    """The gain of packing, by the latest packed piece: the remaining share of the bytes, and the slower side's time for
    a byte. It is measured again now and then, because a reply's arrays may differ."""

    def __init__(self) -> None:
        self._share, self._seconds = 0.0, 0.0  # the first piece is packed, to measure
        self._plain = 0  # pieces since

    def note(self, size: int, packed: int, seconds: float) -> None:
        """Record a piece of `size` bytes, packed to fewer in so many seconds on the slower side."""
        self._share, self._seconds, self._plain = packed / size, seconds / size, 0

    def packs_next(self, bytes_per_second: float | None) -> bool:
        """Return whether the next piece arrives sooner packed. Both sides work while the connection carries others."""
        if bytes_per_second is None or self._plain >= TRIED_AGAIN:
            self._plain = 0
            return True
        sooner = max(self._share / bytes_per_second, self._seconds) < 1 / bytes_per_second
        self._plain += not sooner
        return sooner


Way = Literal["received", "sent"]
_WORDS: Final = {"received": ("receiving", "come"), "sent": ("sending", "gone")}


@dataclass(frozen=True, slots=True, kw_only=True)
class SoFar:
    """`done` of `total` bytes, as they are when they are pieces.unpacked; `carried` are those that crossed the line."""

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
        """The line that stays at the end."""
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


PostPiece = Callable[[pieces.ReadPiece, Callable[[pieces.PieceRead | DjinnError], None]], object]
Ended = Callable[[list[codec.WireFrame] | DjinnError], None]


class Transmission(ABC):
    """Message number `of`, whose frames have these sizes. What ends it is called once, unless it is given up."""

    def __init__(self, of: int, sizes: tuple[int, ...], way: Way, rate: LineRate) -> None:
        self._of, self._sizes, self._total, self._way, self._rate = of, sizes, sum(sizes), way, rate
        self._began, self._packed = time.monotonic(), PackedRate()
        self._asked = self._done = self._carried = self._under_way = 0
        self._over = False

    @property
    def progress(self) -> SoFar:
        """The part that has crossed; read from any thread."""
        seconds = max(time.monotonic() - self._began, 1e-6)
        return SoFar(way=self._way, done=self._done, total=self._total, carried=self._carried, seconds=seconds)

    def begin(self) -> None:
        self._rate.begin(time.monotonic())
        self._go_on()

    def give_up(self) -> None:
        """Go on no more, and call nothing."""
        self._over = True

    def _go_on(self) -> None:
        while not self._over and self._asked < self._total and self._under_way < self._rate.at_once:
            count = min(self._rate.piece_bytes, self._total - self._asked)
            start, self._asked = self._asked, self._asked + count
            self._under_way += 1
            self._post_piece(start, count, self._packed.packs_next(self._rate.bytes_per_second))
        if not self._over and self._done == self._total:
            self._over = True
            self._complete()

    def _count(self, size: int, carried: int) -> None:
        self._done += size
        self._carried += carried

    @abstractmethod
    def _post_piece(self, start: int, count: int, packed: bool) -> None: ...

    @abstractmethod
    def _complete(self) -> None: ...


class Arrival(Transmission):
    """The reply to request number `of`. `ended` is called with its frames or the error that ends it."""

    def __init__(self, of: int, told: pieces.InPieces, *, post: PostPiece, rate: LineRate, ended: Ended) -> None:
        super().__init__(of, told.sizes, "received", rate)
        self._post, self._ended, self._content = post, ended, bytearray()

    def begin(self) -> None:
        try:
            codec.require_sizes(self._sizes)
            self._content = bytearray(self._total)
        except WireError as error:
            self._fail(error)
        except MemoryError:
            self._fail(MessageTooLarge(f"There is no memory for this reply of {spell_bytes(self._total)}."))
        else:
            super().begin()

    def _post_piece(self, start: int, count: int, packed: bool) -> None:
        request = pieces.ReadPiece(of=self._of, start=start, count=count, packed=packed)
        self._post(request, lambda outcome: self._take(request, outcome))

    def _take(self, request: pieces.ReadPiece, outcome: pieces.PieceRead | DjinnError) -> None:
        if self._over:
            return
        self._under_way -= 1
        try:
            if isinstance(outcome, DjinnError):
                raise outcome
            self._put(request, outcome)
        except DjinnError as error:
            self._fail(error)
        else:
            self._go_on()

    def _put(self, request: pieces.ReadPiece, piece: pieces.PieceRead) -> None:
        now, carried = time.monotonic(), piece.content.nbytes
        self._rate.note(now, carried)
        content = pieces.unpacked(piece.content, piece.stride, request.count)
        if request.packed:
            self._packed.note(request.count, carried, max(piece.seconds, time.monotonic() - now))
        self._content[request.start : request.start + request.count] = content
        self._count(request.count, carried)

    def _complete(self) -> None:
        whole = memoryview(self._content)
        ends = accumulate(self._sizes)
        self._ended([whole[end - size : end] for size, end in zip(self._sizes, ends, strict=True)])

    def _fail(self, error: DjinnError) -> None:
        self._over = True
        self._ended(error)


PutPieces = Callable[[pieces.PutPiece, Callable[[pieces.PieceTaken | DjinnError], None]], object]
UploadEnded = Callable[[DjinnError | None], None]


class Upload(Transmission):
    """Request number `of`, which has these frames. `ended` is called with None when the engine has all of them, or with
    the error that ends it."""

    def __init__(
        self, of: int, frames: list[codec.WireFrame], *, post: PutPieces, rate: LineRate, ended: UploadEnded
    ) -> None:
        super().__init__(of, pieces.sizes_of(frames), "sent", rate)
        self._frames, self._post, self._ended = frames, post, ended

    def _post_piece(self, start: int, count: int, packed: bool) -> None:
        content, stride, began = pieces.part_of(self._frames, start, count), None, time.monotonic()
        if packed:
            content, stride = pack_where_fewer(content)
        seconds = time.monotonic() - began
        piece = pieces.PutPiece(
            of=self._of,
            start=start,
            count=count,
            content=Array.of_bytes(content),
            stride=stride,
            sizes=() if start else self._sizes,
        )
        self._post(piece, lambda outcome: self._take(piece, seconds if packed else None, outcome))

    def _take(self, piece: pieces.PutPiece, packing: float | None, outcome: pieces.PieceTaken | DjinnError) -> None:
        """Process the reply to a piece, whose packing took so many seconds, None where it was not tried."""
        if self._over:
            return
        self._under_way -= 1
        if isinstance(outcome, DjinnError):
            self._over = True
            return self._ended(outcome)
        carried = piece.content.nbytes
        self._rate.note(time.monotonic(), carried)
        if packing is not None:
            self._packed.note(piece.count, carried, max(packing, outcome.seconds))
        self._count(piece.count, carried)
        self._go_on()

    def _complete(self) -> None:
        self._ended(None)


Answer = TypeVar("Answer", bound=ReplyBase)
Answered = Callable[[ReplyBase | DjinnError], None]
AnsweredBy = Callable[[Answer | DjinnError], None]
GIVEN_UP = "The reply was given up on its way; ask for it again."


class Post(Protocol):
    def __call__(self, request: RequestBase[Answer], answered: AnsweredBy[Answer], /) -> int: ...


@dataclass(slots=True)
class Sent:
    """A request without its reply, and the frames to send again on the next connection; a Hello is not sent again."""

    frames: list[codec.WireFrame]
    answered: Answered
    given_up: bool = False  # a large reply to it is not read
    in_pieces: bool = False  # it leaves in pieces


def checked(request: RequestBase[Answer], answered: AnsweredBy[Answer]) -> Answered:
    """Return the callback of a request for any outcome: a reply that does not answer it is a WireError."""

    def told(outcome: ReplyBase | DjinnError) -> None:
        if isinstance(outcome, DjinnError) or request.is_answered_by(outcome):
            answered(outcome)
        else:
            answered(WireError(f"The engine answered {type(request).__name__} with {type(outcome).__name__}."))

    return told


def settle(answer: asyncio.Future[Answer], outcome: Answer | DjinnError) -> None:
    """Set the result or the error of a future, unless its caller has stopped waiting."""
    if answer.done():
        return
    if isinstance(outcome, DjinnError):
        answer.set_exception(outcome)
    else:
        answer.set_result(outcome)


class Transmissions:
    """The large messages of one way. `rate` is that of the line; `latest` is how far the one came that ended last."""

    def __init__(self, post: Post) -> None:
        self.rate, self._post = LineRate(), post
        self.latest: SoFar | None = None
        self._under_way: dict[int, Transmission] = {}

    @property
    def progress(self) -> SoFar | None:
        """The part of the oldest one that has crossed; read from any thread."""
        return next((one.progress for one in tuple(self._under_way.values())), None)

    def line_is_back(self) -> None:
        """Measure again: the time without a connection says nothing about its rate."""
        self.rate.begin(time.monotonic())

    def _give_up_all(self) -> None:
        for one in self._under_way.values():
            one.give_up()
        self._under_way.clear()

    def _drop(self, number: int) -> None:
        """End one, and have the engine let go of its pieces."""
        crossing = self._under_way.pop(number)
        crossing.give_up()
        self.latest = crossing.progress
        self._post(pieces.DropPieces(of=number), lambda dropped: None)


class Arrivals(Transmissions):
    """`arrived` is called with the number of a request, and the frames of its reply when they are all there."""

    def __init__(self, post: Post, arrived: Callable[[int, Sent, list[codec.WireFrame]], None]) -> None:
        super().__init__(post)
        self._arrived = arrived
        self._sent: dict[int, Sent] = {}

    def begin(self, number: int, told: pieces.InPieces, sent: Sent) -> None:
        """Read the reply to a request."""
        arrival = Arrival(
            number, told, post=self._post, rate=self.rate, ended=lambda outcome: self._end(number, outcome)
        )
        self._under_way[number], self._sent[number] = arrival, sent
        if sent.given_up:
            self.give_up(number)
        else:
            arrival.begin()

    def give_up(self, number: int) -> bool:
        """Stop reading a reply. Return False where none with that number is arriving."""
        if number not in self._under_way:
            return False
        self._end(number, EngineError(GIVEN_UP))
        return True

    def asked_again(self) -> dict[int, Sent]:
        """Return the requests whose replies were lost with their engine: they begin again at the next one."""
        self._give_up_all()
        sent, self._sent = self._sent, {}
        return sent

    def lose(self, sentence: str) -> None:
        """End all of them, because no engine answers any more."""
        for sent in self.asked_again().values():
            sent.answered(EngineUnavailable(sentence))

    def _end(self, number: int, outcome: list[codec.WireFrame] | DjinnError) -> None:
        self._drop(number)
        sent = self._sent.pop(number)
        if isinstance(outcome, DjinnError):
            sent.answered(outcome)
        else:
            self._arrived(number, sent, outcome)


# The large requests of a connection that leave in pieces, so that other requests need not wait for them, an interrupt
# cancels them, and a replaced connection continues them.

TAKEN_BACK: Final = "The request was taken back on its way, and nothing of it was done; ask again."


class Uploads(Transmissions):
    """`send` sends a message as it is; `failed` is called with the number of a request that could not be sent whole, of
    which nothing was done."""

    def __init__(
        self, post: Post, send: Callable[[list[codec.WireFrame]], object], failed: Callable[[int, DjinnError], object]
    ) -> None:
        super().__init__(post)
        self._send, self._failed = send, failed
        self._there: set[int] = set()

    def send(self, number: int, frames: list[codec.WireFrame]) -> None:
        """Send a request, or continue it on another connection, where unanswered pieces are sent again."""
        if number in self._there:
            self._assemble(number)
        elif number not in self._under_way:
            self._under_way[number] = upload = Upload(
                number, frames, post=self._post, rate=self.rate, ended=lambda error: self._end(number, error)
            )
            upload.begin()

    def give_up(self, number: int) -> bool:
        """Stop sending a request. Return False where none with that number is being sent."""
        is_under_way = number in self._under_way
        if is_under_way:
            self._drop(number)
        return is_under_way

    def answered(self, number: int) -> None:
        """Record that a request has its reply."""
        self._there.discard(number)

    def begin_anew(self) -> None:
        """Forget what the engine has: a new one has nothing."""
        self._give_up_all()
        self._there.clear()

    def _end(self, number: int, error: DjinnError | None) -> None:
        if error is not None:
            self._drop(number)
            self._failed(number, error)
            return
        self.latest = self._under_way.pop(number).progress
        self._there.add(number)
        self._assemble(number)

    def _assemble(self, number: int) -> None:
        self._send(codec.encode_checked(number, pieces.Assemble()))


def goes_in_pieces(request: Request, frames: list[codec.WireFrame]) -> bool:
    return not isinstance(request, pieces.PutPiece) and pieces.is_large(frames)
