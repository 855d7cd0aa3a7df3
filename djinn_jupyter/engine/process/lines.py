"""Clients that outlive a lost line: the connection on which each is spoken to now, and what it was answered, so that a
request that comes again is answered again and not done again. Knows no sockets; called from one thread.

A client is known by the token of its Hello together with the key of its connection; without a token it is its
connection, and ends with it. Its requests are numbered upwards, and after a loss it sends those again that were not
answered.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final
from weakref import WeakValueDictionary

from djinn_jupyter.engine.process.kept_replies import MOST_REPLIES, KeptReplies
from djinn_jupyter.engine.session.answered import RequestId
from djinn_jupyter.wire import codec
from djinn_jupyter.wire.keys import PublicKey
from djinn_jupyter.wire.replies import Failed
from djinn_jupyter.wire.requests import Request

NOWHERE: Final = b""  # no connection has this routing id
_DIGEST_BYTES: Final = 16
KEPT_SECONDS: Final = 600.0
"""After which the replies to a client that is not heard any more are let go."""
NOT_KEPT: Final = Failed(
    code="EngineUnavailable",
    message="The line was lost after the engine took this request. It was done, but its reply is not kept any more: "
    "look at the session before you go on.",
)
"""The reply to a request that came again too late."""


@dataclass(slots=True)
class _KeptClient:
    kept: KeptReplies
    key: PublicKey
    peer: bytes
    heard_at: float
    digest: bytes
    resent_before: int  # requests below this number were sent to an earlier engine first
    taken: set[int] = field(default_factory=set)  # requests that came, beyond `confirmed`
    confirmed: int = 0  # up to this number the client has all replies

    def has_all_up_to(self, number: int) -> None:
        """Note that the client has the replies up to that number, and sends none of these requests again."""
        self.confirmed = max(self.confirmed, number)
        self.taken = {one for one in self.taken if one > self.confirmed}


class Lines:
    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._clients: dict[bytes, _KeptClient] = {}
        self._kept: WeakValueDictionary[PublicKey, KeptReplies] = WeakValueDictionary()  # kept by its clients
        self._on: dict[bytes, bytes] = {}

    def __len__(self) -> int:
        """Return the number of clients that outlive their lines."""
        return len(self._clients)

    def greet(self, peer: bytes, token: str, key: PublicKey, *, resent_before: int = 0) -> bytes:
        """Return the client that says Hello on a connection; from here on it is spoken to there. One of an earlier
        engine sends again what it asked for before this number."""
        self.lose(peer)
        if not token:
            return peer
        name = name_of(token, key)
        client = self._clients.get(name) or self._new(name, peer, key, resent_before)
        self._clients[name] = client
        self._on.pop(client.peer, None)
        client.peer, client.heard_at = peer, self._clock()
        self._on[peer] = name
        return name

    def _new(self, name: bytes, peer: bytes, key: PublicKey, resent_before: int) -> _KeptClient:
        return _KeptClient(
            kept=self._kept.setdefault(key, KeptReplies()),
            key=key,
            peer=peer,
            heard_at=self._clock(),
            digest=hashlib.blake2b(name, digest_size=_DIGEST_BYTES).digest(),
            resent_before=resent_before,
        )

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

    def key_of(self, name: bytes) -> PublicKey:
        """Return the key of a client that outlives its line, also while that is down."""
        return self._clients[name].key

    def outlives(self, name: bytes) -> bool:
        return name in self._clients

    def hears(self, name: bytes) -> bool:
        """Return whether a client outlives its line and was heard within KEPT_SECONDS."""
        client = self._clients.get(name)
        return client is not None and self._clock() - client.heard_at <= KEPT_SECONDS

    def take(self, name: bytes, number: int) -> bool:
        """Note that a request came. Return False where it had come before."""
        client = self._clients.get(name)
        if client is None:
            return True
        client.heard_at = self._clock()
        if number <= client.confirmed or number in client.taken:
            return False
        client.taken.add(number)
        if len(client.taken) > MOST_REPLIES:
            client.has_all_up_to(min(client.taken))
        return True

    def known_as(self, name: bytes, number: int) -> RequestId | None:
        """Return the id of a request by which a session knows it again; None for a client that sends none again. The
        journal has it, and the token does not follow from it."""
        client = self._clients.get(name)
        if client is None:
            return None
        return RequestId(client=client.digest, number=number, again=number < client.resent_before)

    def remember(self, name: bytes, number: int, frames: list[codec.WireFrame]) -> None:
        """Keep a reply until the client has it, or its person's are too many, or too large ones."""
        if name in self._clients:
            self._clients[name].kept.keep(name, number, frames)

    def reply_again(self, name: bytes, envelope: codec.Envelope[Request]) -> list[codec.WireFrame] | None:
        """Return the reply that a request got when it came before. Where it is kept no longer: None for one that only
        reads and can be done again, NOT_KEPT for another."""
        frames = self._clients[name].kept.get(name, envelope.id)
        if frames is not None or type(envelope.body).terms.resent == "anew":
            return frames
        return codec.encode_reply(envelope.id, NOT_KEPT)

    def confirm(self, name: bytes, number: int) -> None:
        """Let go of the replies up to that number: the client has them."""
        client = self._clients.get(name)
        if client is not None:
            client.kept.confirm(name, number)
            client.has_all_up_to(min(number, max(client.taken, default=0)))

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
            elif not self.hears(name):
                client.kept.forget(name)


def name_of(token: str, key: PublicKey) -> bytes:
    """Return the name of the client with that token and key."""
    return b"client " + token.encode() + b" " + key
