"""The replies that one person's clients may ask for again, each kept until the client has it. Beyond a bound those that
were kept longest are let go."""

from __future__ import annotations

from collections import OrderedDict, defaultdict
from typing import Final

from djinn_jupyter.engine.process.unread import bytes_of
from djinn_jupyter.wire import codec

MOST_REPLIES: Final = 10_000
MOST_BYTES: Final = 64 * 2**20


class KeptReplies:
    """Replies by client and number. `bytes` is the memory that they take."""

    def __init__(self) -> None:
        self._replies: OrderedDict[tuple[bytes, int], list[codec.WireFrame]] = OrderedDict()
        self._numbers: defaultdict[bytes, set[int]] = defaultdict(set)
        self.bytes = 0

    def __len__(self) -> int:
        return len(self._replies)

    def numbers(self, client: bytes) -> frozenset[int]:
        return frozenset(self._numbers.get(client, ()))

    def keep(self, client: bytes, number: int, frames: list[codec.WireFrame]) -> None:
        if (client, number) in self._replies:
            self._let_go(client, number)
        self._replies[client, number] = frames
        self._numbers[client].add(number)
        self.bytes += bytes_of(frames)
        while len(self._replies) > MOST_REPLIES or self.bytes > MOST_BYTES:
            self._let_go(*next(iter(self._replies)))

    def get(self, client: bytes, number: int) -> list[codec.WireFrame] | None:
        return self._replies.get((client, number))

    def confirm(self, client: bytes, number: int) -> None:
        """Let go of the replies up to that number: the client has them."""
        for known in [one for one in self._numbers.get(client, ()) if one <= number]:
            self._let_go(client, known)

    def forget(self, client: bytes) -> None:
        for number in self.numbers(client):
            self._let_go(client, number)

    def _let_go(self, client: bytes, number: int) -> None:
        self.bytes -= bytes_of(self._replies.pop((client, number)))
        self._numbers[client].discard(number)
        if not self._numbers[client]:
            del self._numbers[client]
