"""The large requests of a connection that leave in pieces, so that what else is asked for need not wait for them, an
interrupt takes them back, and a line that was lost goes on where it was."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from djinn_jupyter.client.connection.arrivals import Post
from djinn_jupyter.client.connection.line_rate import LineRate
from djinn_jupyter.client.connection.so_far import SoFar
from djinn_jupyter.client.connection.upload import Upload
from djinn_jupyter.errors import DjinnError
from djinn_jupyter.wire import codec
from djinn_jupyter.wire.pieces import Assemble, DropPieces, PutPiece, is_large
from djinn_jupyter.wire.requests import Request

TAKEN_BACK: Final = "The request was taken back on its way, and nothing of it was done; ask again."


class Uploads:
    """`rate` is that of the line to the engine. `send` sends a message as it is; `failed` is called with the number of
    a request that could not be sent whole, of which nothing was done."""

    def __init__(
        self,
        post: Post,
        send: Callable[[list[codec.WireFrame]], object],
        failed: Callable[[int, DjinnError], object],
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
