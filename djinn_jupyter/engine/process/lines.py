"""Clients that outlive a lost line: the connection on which each is spoken to now, and what it was answered, so that a
request that comes again is answered again and not done again. Knows no sockets; called from one thread.

A client is known by the token of its Hello together with the key of its connection; without a token it is its
connection, and ends with it. Its requests are numbered upwards, and after a loss it sends those again that were not
answered.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final
from weakref import WeakValueDictionary

from djinn_jupyter.engine.process.kept_replies import KeptReplies
from djinn_jupyter.wire import codec
from djinn_jupyter.wire.keys import PublicKey
from djinn_jupyter.wire.replies import Failed
from djinn_jupyter.wire.requests import (
    Describe,
    Detokenize,
    Inspect,
    Lens,
    ListCheckpoints,
    ListModules,
    ListSessions,
    ReadCopies,
    ReadHistory,
    ReadLogits,
    ReadMetrics,
    ReadStatistics,
    ReadStop,
    ReadTree,
    ReadWatch,
    Request,
    Tokenize,
)

NOWHERE: Final = b""  # no connection has this routing id
KEPT_SECONDS: Final = 600.0
"""After which the replies to a client that is not heard any more are let go."""
NOT_KEPT: Final = Failed(
    code="EngineUnavailable",
    message="The line was lost after the engine took this request. It was done, but its reply is not kept any more: "
    "look at the session before you go on.",
)
"""The reply to a request that came again too late."""
READING: Final = (
    ListModules | Tokenize | Detokenize | ReadStatistics | ListSessions | Describe | Inspect | Lens | ReadStop
    | ReadLogits | ReadMetrics | ReadHistory | ReadTree | ReadWatch | ReadCopies | ListCheckpoints
)  # fmt: skip


@dataclass(slots=True)
class _KeptClient:
    kept: KeptReplies
    peer: bytes
    heard_at: float
    taken: int = 0  # all requests up to this number


class Lines:
    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._clients: dict[bytes, _KeptClient] = {}
        self._kept: WeakValueDictionary[PublicKey, KeptReplies] = WeakValueDictionary()  # kept by its clients
        self._on: dict[bytes, bytes] = {}

    def __len__(self) -> int:
        """Return the number of clients that outlive their lines."""
        return len(self._clients)

    def greet(self, peer: bytes, token: str, key: PublicKey = b"") -> bytes:
        """Return the client that says Hello on a connection; from here on it is spoken to there."""
        self.lose(peer)
        if not token:
            return peer
        name = name_of(token, key)
        client = self._clients.get(name) or _KeptClient(self._kept.setdefault(key, KeptReplies()), peer, self._clock())
        self._clients[name] = client
        self._on.pop(client.peer, None)
        client.peer, client.heard_at = peer, self._clock()
        self._on[peer] = name
        return name

    def lose(self, peer: bytes) -> None:
        """Speak to no client on a connection any more; the one that was there may come back on another."""
        name = self._on.pop(peer, None)
        if name is not None:
            self._clients[name].peer = NOWHERE

    def client_on(self, peer: bytes) -> bytes:
        """Return the client that is spoken to on a connection."""
        return self._on.get(peer, peer)

    def peer_of(self, name: bytes) -> bytes:
        client = self._clients.get(name)
        return name if client is None else client.peer

    def outlives(self, name: bytes) -> bool:
        return name in self._clients

    def take(self, name: bytes, number: int) -> bool:
        """Note that a request came. Return False where it, or a later one, had come before."""
        client = self._clients.get(name)
        if client is None:
            return True
        client.heard_at = self._clock()
        if number <= client.taken:
            return False
        client.taken = number
        return True

    def remember(self, name: bytes, number: int, frames: list[codec.WireFrame]) -> None:
        """Keep a reply until the client has it, or its person's are too many, or too large ones."""
        if name in self._clients:
            self._clients[name].kept.keep(name, number, frames)

    def reply_again(self, name: bytes, envelope: codec.Envelope[Request]) -> list[codec.WireFrame] | None:
        """Return the reply that a request got when it came before. Where it is kept no longer: None for one that only
        reads and can be done again, NOT_KEPT for another."""
        frames = self._clients[name].kept.get(name, envelope.id)
        if frames is not None or isinstance(envelope.body, READING):
            return frames
        return codec.encode_reply(envelope.id, NOT_KEPT)

    def confirm(self, name: bytes, number: int) -> None:
        """Let go of the replies up to that number: the client has them."""
        client = self._clients.get(name)
        if client is not None:
            client.kept.confirm(name, number)

    def forget(self, name: bytes) -> None:
        client = self._clients.pop(name, None)
        if client is not None:
            self._on.pop(client.peer, None)
            client.kept.forget(name)

    def sweep(self, known: Callable[[bytes], bool]) -> None:
        """Let go of the replies to clients that were not heard for KEPT_SECONDS, and of clients that are not `known`
        any more."""
        for name, client in tuple(self._clients.items()):
            if not known(name):
                self.forget(name)
            elif self._clock() - client.heard_at > KEPT_SECONDS:
                client.kept.forget(name)


def name_of(token: str, key: PublicKey) -> bytes:
    """Return the name of the client with that token and key."""
    return b"client " + token.encode() + b" " + key
