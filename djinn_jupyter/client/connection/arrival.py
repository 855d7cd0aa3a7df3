"""One large reply that arrives in pieces. Knows no sockets: it posts its requests, and takes their replies."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import accumulate

from djinn_jupyter.amounts import spell_bytes
from djinn_jupyter.client.connection.line_rate import LineRate, PackedRate
from djinn_jupyter.errors import DjinnError, MalformedMessage, MessageTooLarge, WireError
from djinn_jupyter.wire import codec
from djinn_jupyter.wire.packing import unpack
from djinn_jupyter.wire.pieces import InPieces, PieceRead, ReadPiece
from djinn_jupyter.wire.replies import Reply

Post = Callable[[ReadPiece, Callable[["Reply | DjinnError"], None]], object]
Ended = Callable[["list[codec.WireFrame] | DjinnError"], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReceivedSoFar:
    """`received` of `total` bytes, as they are when they are unpacked; `carried` are those that crossed the line."""

    received: int
    total: int
    carried: int
    seconds: float

    @property
    def share(self) -> float:
        return self.received / self.total

    @property
    def ended(self) -> str:
        """The line that stays when it is over."""
        if self.received < self.total:
            return f"given up: {spell_bytes(self.received)} of {spell_bytes(self.total)} had come"
        return f"received {spell_bytes(self.total)} in {self.seconds:.0f} s, {self._rate} over the line"

    @property
    def _rate(self) -> str:
        return f"{spell_bytes(self.carried / self.seconds)}/s"

    def __str__(self) -> str:
        done = f"receiving {spell_bytes(self.received)} of {spell_bytes(self.total)}"
        if not self.received:
            return done
        left = self.seconds * (self.total - self.received) / self.received
        return f"{done}, {self._rate}, about {left:.0f} s left"


class Arrival:
    """The reply to request number `of`. `ended` is called once, with its frames or the error that ends it, unless it is
    given up."""

    def __init__(self, of: int, told: InPieces, *, post: Post, rate: LineRate, ended: Ended) -> None:
        self._of, self._post, self._rate, self._ended = of, post, rate, ended
        self._sizes, self._total = told.sizes, sum(told.sizes)
        self._began, self._packed = time.monotonic(), PackedRate()
        self._asked = self._received = self._carried = self._under_way = 0
        self._content = bytearray()
        self._over = False

    @property
    def progress(self) -> ReceivedSoFar:
        """The part that has come; read from any thread."""
        return ReceivedSoFar(
            received=self._received,
            total=self._total,
            carried=self._carried,
            seconds=max(time.monotonic() - self._began, 1e-6),
        )

    def begin(self) -> None:
        try:
            _require_sizes(self._sizes)
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

    def _take(self, request: ReadPiece, outcome: Reply | DjinnError) -> None:
        if self._over:
            return
        self._under_way -= 1
        try:
            if not isinstance(outcome, PieceRead):
                raise outcome if isinstance(outcome, DjinnError) else WireError(f"A {type(outcome).__name__} came.")
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


def _require_sizes(sizes: tuple[int, ...]) -> None:
    if not sizes or min(sizes) < 0 or len(sizes) > codec.MAX_FRAMES:
        raise MalformedMessage(f"A reply of {len(sizes)} frames cannot be read in pieces.")
    if sizes[0] > codec.MAX_ENVELOPE_BYTES or sum(sizes[1:]) > codec.MAX_ARRAY_BYTES:
        raise MessageTooLarge(f"A reply of {spell_bytes(sum(sizes))} is more than one message may have.")
