"""The requests that changed a session, with the replies to them. They are kept with the session, so that one that comes
again, also to the next engine, is answered again and not done again. Knows no requests and no replies, only bytes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

MOST_REQUESTS: Final = 32
MOST_BYTES: Final = 64 * 2**10  # of replies: each image in the journal has them


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestId:
    """A client, by a digest of what no other knows, and its number of a request. `again`: it was sent to an earlier
    engine first."""

    client: bytes
    number: int
    again: bool = field(default=False, compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class AnsweredRequest:
    """`done` is False while it is under way. `reply` is None where none is kept."""

    client: bytes
    number: int
    done: bool
    reply: bytes | None = None


class AnsweredRequests:
    """The latest MOST_REQUESTS. `let_go` is, by client, up to which number older ones were let go."""

    def __init__(self) -> None:
        self._requests: dict[tuple[bytes, int], AnsweredRequest] = {}
        self._let_go: dict[bytes, int] = {}

    def __iter__(self) -> Iterator[AnsweredRequest]:
        return iter(self._requests.values())

    @property
    def let_go(self) -> dict[bytes, int]:
        return dict(self._let_go)

    def begin(self, known: RequestId) -> None:
        """Note that the work of a request begins, of which an image may have a part."""
        self._put(AnsweredRequest(client=known.client, number=known.number, done=False))

    def conclude(self, known: RequestId, reply: bytes | None) -> None:
        self._put(AnsweredRequest(client=known.client, number=known.number, done=True, reply=reply))

    def find(self, known: RequestId) -> AnsweredRequest | None:
        """Return a request that came before; one that was let go without its reply."""
        found = self._requests.get((known.client, known.number))
        if found is None and known.again and known.number <= self._let_go.get(known.client, -1):
            return AnsweredRequest(client=known.client, number=known.number, done=True)
        return found

    def take_over(self, requests: Iterator[AnsweredRequest], let_go: Mapping[bytes, int]) -> None:
        """Keep what an earlier session of the name, or an earlier process, has kept."""
        self._let_go = dict(let_go)
        for one in requests:
            self._put(one)

    def _put(self, one: AnsweredRequest) -> None:
        self._requests.pop((one.client, one.number), None)
        self._requests[one.client, one.number] = one
        while len(self._requests) > MOST_REQUESTS:
            self._let_oldest_go()
        room = MOST_BYTES
        for key, kept in reversed(self._requests.items()):
            room -= len(kept.reply or b"")
            if room < 0 and kept.reply is not None:
                self._requests[key] = AnsweredRequest(client=kept.client, number=kept.number, done=True)

    def _let_oldest_go(self) -> None:
        oldest = self._requests.pop(next(iter(self._requests)))
        self._let_go[oldest.client] = max(oldest.number, self._let_go.pop(oldest.client, -1))
        if len(self._let_go) > MOST_REQUESTS:
            del self._let_go[next(iter(self._let_go))]
