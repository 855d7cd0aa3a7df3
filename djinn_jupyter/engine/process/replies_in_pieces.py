"""Large replies to clients on other machines, kept while their clients read them in pieces (wire/pieces.py). A reply is
its client's alone: no other finds it, whatever number it names.

Called from the thread of the service; pieces are packed in a thread of their own, one after the other.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final

from djinn_jupyter.amounts import spell_bytes
from djinn_jupyter.engine.process.unread import PERSON_BYTES, bytes_of
from djinn_jupyter.errors import EngineError, UsageError
from djinn_jupyter.wire import codec
from djinn_jupyter.wire.arrays import Array
from djinn_jupyter.wire.keys import PublicKey
from djinn_jupyter.wire.packing import pack_where_fewer
from djinn_jupyter.wire.pieces import Dropped, DropPieces, InPieces, PieceRead, ReadPiece, part_of
from djinn_jupyter.wire.replies import Failed, Reply

Answer = Callable[[Reply], None]
NOT_SENT: Final = Failed(
    code="EngineError",
    message=f"The reply to this request is not sent: {spell_bytes(PERSON_BYTES)} of replies to you are on their way. "
    "Let them arrive or interrupt them, and look at the session before you go on.",
)
NOT_THERE: Final = "The rest of this reply is not there any more; ask for it again."


@dataclass(frozen=True, slots=True)
class _KeptReply:
    frames: list[codec.WireFrame]
    person: PublicKey

    @property
    def size(self) -> int:
        return sum(memoryview(frame).nbytes for frame in self.frames)

    def piece(self, asked: ReadPiece) -> PieceRead:
        content = part_of(self.frames, asked.start, asked.count)
        if not asked.packed:
            return PieceRead(content=Array.of_bytes(content))
        began = time.perf_counter()
        packed, stride = pack_where_fewer(content)
        return PieceRead(content=Array.of_bytes(packed), stride=stride, seconds=time.perf_counter() - began)


class RepliesInPieces:
    """One person has at most PERSON_BYTES here, beside one reply of any size."""

    def __init__(self) -> None:
        self._kept: dict[tuple[bytes, int], _KeptReply] = {}
        self._packer: ThreadPoolExecutor | None = None

    def __len__(self) -> int:
        return len(self._kept)

    def keep(self, client: bytes, number: int, frames: list[codec.WireFrame], person: PublicKey) -> Reply:
        """Keep a reply. Return what is sent in its place: NOT_SENT where its person has too much here."""
        self._kept.pop((client, number), None)
        of_person = [bytes_of(reply.frames) for reply in self._kept.values() if reply.person == person]
        if of_person and sum(of_person) + bytes_of(frames) > PERSON_BYTES:
            return NOT_SENT
        self._kept[client, number] = _KeptReply(frames, person)
        return InPieces(sizes=tuple(memoryview(frame).nbytes for frame in frames))

    def answer(self, client: bytes, request: ReadPiece | DropPieces, answer: Answer) -> None:
        """Answer a request for a piece, later and from another thread, or let go of a reply."""
        if isinstance(request, DropPieces):
            self._kept.pop((client, request.of), None)
            answer(Dropped())
            return
        reply = self._kept.get((client, request.of))
        if reply is None:
            answer(Failed.of(EngineError(NOT_THERE)))
        elif request.start + request.count > reply.size:
            answer(Failed.of(UsageError("That is no piece of this reply.")))
        else:
            self._packing().submit(_answer_with, reply, request, answer)

    def forget(self, client: bytes) -> None:
        """Let go of a client's replies."""
        for key in [key for key in self._kept if key[0] == client]:
            del self._kept[key]

    def keep_only(self, known: Callable[[bytes], bool]) -> None:
        """Let go of the replies to clients that are not known any more."""
        for client in {client for client, _ in self._kept if not known(client)}:
            self.forget(client)

    def close(self) -> None:
        """Let go of all replies, and return when no piece is under way."""
        self._kept.clear()
        if self._packer is not None:
            self._packer.shutdown(cancel_futures=True)

    def _packing(self) -> ThreadPoolExecutor:
        if self._packer is None:
            self._packer = ThreadPoolExecutor(max_workers=1, thread_name_prefix="djinn-pieces")
        return self._packer


def _answer_with(reply: _KeptReply, request: ReadPiece, answer: Answer) -> None:
    try:
        answer(reply.piece(request))
    except Exception as error:  # noqa: BLE001  the request's edge
        answer(Failed.of(EngineError(f"A piece could not be read ({type(error).__name__}: {error}).")))
