"""One large request that leaves in pieces. Knows no sockets: it posts the pieces, and takes the replies to them."""

from __future__ import annotations

import time
from collections.abc import Callable

from djinn_jupyter.client.connection.line_rate import LineRate, PackedRate
from djinn_jupyter.client.connection.so_far import SoFar
from djinn_jupyter.errors import DjinnError
from djinn_jupyter.wire import codec
from djinn_jupyter.wire.arrays import Array
from djinn_jupyter.wire.packing import pack_where_fewer
from djinn_jupyter.wire.pieces import PieceTaken, PutPiece, part_of

Post = Callable[[PutPiece, Callable[["PieceTaken | DjinnError"], None]], object]
Ended = Callable[["DjinnError | None"], None]


class Upload:
    """Request number `of`, which has these frames. `ended` is called once, with None when the engine has all of them,
    or with the error that ends it, unless it is given up."""

    def __init__(self, of: int, frames: list[codec.WireFrame], *, post: Post, rate: LineRate, ended: Ended) -> None:
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
