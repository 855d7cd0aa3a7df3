"""One large reply that arrives in pieces. Knows no sockets: it posts its requests, and takes their replies."""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import accumulate

from djinn_jupyter.amounts import spell_bytes
from djinn_jupyter.client.connection.line_rate import LineRate, PackedRate
from djinn_jupyter.client.connection.so_far import SoFar
from djinn_jupyter.errors import DjinnError, MalformedMessage, MessageTooLarge, WireError
from djinn_jupyter.wire import codec
from djinn_jupyter.wire.packing import unpack
from djinn_jupyter.wire.pieces import InPieces, PieceRead, ReadPiece

Post = Callable[[ReadPiece, Callable[["PieceRead | DjinnError"], None]], object]
Ended = Callable[["list[codec.WireFrame] | DjinnError"], None]


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
