"""Large messages over a connection, in pieces. Its speed is measured by what has really arrived on it: its round trip,
and the bytes that it carries in a second. From them follow the size of a piece, how many are asked for at once, and
whether packing makes one arrive sooner."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from itertools import accumulate
from typing import Any, Final, Protocol

from djinn_jupyter.errors import DjinnError, MessageTooLarge
from djinn_jupyter.link.io_thread import SoFar, Way
from djinn_jupyter.units import spell_bytes
from djinn_jupyter.wire import codec, pieces
from djinn_jupyter.wire.arrays import Array, pack_where_fewer
from djinn_jupyter.wire.request_base import Answer, RequestBase

FIRST_BYTES: Final = 64 * 2**10
LEAST_BYTES: Final = 16 * 2**10
PIECE_SECONDS: Final = 0.1  # of a piece's transfer; an interrupt waits only for the requested ones
LEAST_AT_ONCE: Final = 3
TRIED_AGAIN: Final = 32  # pieces after which packing is tried once more
_ARRIVALS: Final = 8


class TransferRate:
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


class Post(Protocol):
    def __call__(self, request: RequestBase[Answer], answered: Callable[[Answer | DjinnError], None], /) -> int: ...


Ended = Callable[[list[codec.WireFrame] | DjinnError], None]


class LargeTransfer(ABC):
    """Message number `of`, whose frames have these sizes. `ended` is called once, with the frames when all have crossed
    or with the error that ends it, unless it is given up."""

    way: Way

    def __init__(self, of: int, sizes: tuple[int, ...], *, post: Post, rate: TransferRate, ended: Ended) -> None:
        self._of, self._sizes, self._total = of, sizes, sum(sizes)
        self._post, self._rate, self._ended = post, rate, ended
        self._began, self._packed = time.monotonic(), PackedRate()
        self._asked = self._done = self._carried = self._under_way = 0
        self.begun = self._over = False

    @property
    def progress(self) -> SoFar:
        """The part that has crossed; read from any thread."""
        seconds = max(time.monotonic() - self._began, 1e-6)
        return SoFar(way=self.way, done=self._done, total=self._total, carried=self._carried, seconds=seconds)

    def begin(self) -> None:
        self.begun = True
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
            self._end(self._frames())

    def _end(self, outcome: list[codec.WireFrame] | DjinnError) -> None:
        self._over = True
        self._ended(outcome)

    def _take(self, piece: Any, packing: float | None, outcome: Any) -> None:
        """Process the reply to a piece, whose packing took so many seconds here, None where it was not tried."""
        if self._over:
            return
        self._under_way -= 1
        try:
            if isinstance(outcome, DjinnError):
                raise outcome
            now, carried = time.monotonic(), self._put(piece, outcome)
        except DjinnError as error:
            return self._end(error)
        self._rate.note(now, carried)
        if packing is not None:
            self._packed.note(piece.count, carried, max(packing + time.monotonic() - now, outcome.seconds))
        self._done += piece.count
        self._carried += carried
        self._go_on()

    @abstractmethod
    def _post_piece(self, start: int, count: int, packed: bool) -> None: ...

    @abstractmethod
    def _put(self, piece: Any, outcome: Any) -> int:
        """Put a received piece in its place. Return the bytes that crossed."""

    @abstractmethod
    def _frames(self) -> list[codec.WireFrame]: ...


class Arrival(LargeTransfer):
    """The reply to request number `of`."""

    way = "received"

    def begin(self) -> None:
        try:
            codec.require_sizes(self._sizes)
            self._content = bytearray(self._total)
        except DjinnError as error:
            self._end(error)
        except MemoryError:
            self._end(MessageTooLarge(f"There is no memory for this reply of {spell_bytes(self._total)}."))
        else:
            super().begin()

    def _post_piece(self, start: int, count: int, packed: bool) -> None:
        piece = pieces.ReadPiece(of=self._of, start=start, count=count, packed=packed)
        self._post(piece, lambda outcome: self._take(piece, 0.0 if packed else None, outcome))

    def _put(self, piece: pieces.ReadPiece, outcome: pieces.PieceRead) -> int:
        content = pieces.unpacked(outcome.content, outcome.stride, piece.count)
        self._content[piece.start : piece.start + piece.count] = content
        return outcome.content.nbytes

    def _frames(self) -> list[codec.WireFrame]:
        whole, ends = memoryview(self._content), accumulate(self._sizes)
        return [whole[end - size : end] for size, end in zip(self._sizes, ends, strict=True)]


class Upload(LargeTransfer):
    """Request number `of`, which has these frames."""

    way = "sent"

    def __init__(self, of: int, frames: list[codec.WireFrame], *, post: Post, rate: TransferRate, ended: Ended) -> None:
        super().__init__(of, pieces.sizes_of(frames), post=post, rate=rate, ended=ended)
        self._whole = frames

    def _post_piece(self, start: int, count: int, packed: bool) -> None:
        content, stride, began = pieces.part_of(self._whole, start, count), None, time.monotonic()
        if packed:
            content, stride = pack_where_fewer(content)
        packing = time.monotonic() - began if packed else None
        sizes = () if start else self._sizes
        content_sent = Array.of_bytes(content)
        piece = pieces.PutPiece(of=self._of, start=start, count=count, content=content_sent, stride=stride, sizes=sizes)
        self._post(piece, lambda outcome: self._take(piece, packing, outcome))

    def _put(self, piece: pieces.PutPiece, outcome: pieces.PieceTaken) -> int:
        return piece.content.nbytes

    def _frames(self) -> list[codec.WireFrame]:
        return self._whole
