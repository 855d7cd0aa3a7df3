"""The bytes of messages that each person has not read: those that wait here for room, and those that zmq has.

zmq tells by a tracker that it is done with a message, which takes about 60 µs of two threads; so of a connection's
messages one in LUMP_BYTES is tracked. They leave in order: one that is done stands for all before it. Knows no sockets;
called from one thread.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

from djinn_jupyter.wire import codec
from djinn_jupyter.wire.keys import PublicKey

PERSON_BYTES: Final = 512 * 2**20
"""That one person may leave unread, beside one message of any size."""
SENTENCES_BYTES: Final = 16 * 2**20  # more, of sentences that say so; beyond them nothing is sent
MESSAGE_BYTES: Final = 500  # of Python and zmq for a message, besides its frames
LUMP_BYTES: Final = 64 * 2**10


class Tracker(Protocol):
    @property
    def done(self) -> bool: ...


@dataclass(slots=True)
class _Connection:
    waiting: int = 0
    untracked: int = 0  # bytes that zmq took since the last tracked message
    lumps: deque[tuple[Tracker, int]] = field(default_factory=deque)


class Unread:
    """A person is a public key, and has connections by their routing ids. The empty key is the engine's own user, of
    whom nothing is counted."""

    def __init__(self) -> None:
        self._persons: dict[PublicKey, dict[bytes, _Connection]] = {}
        self._at_most: dict[PublicKey, int] = {}

    def has_room(self, person: PublicKey, count: int = 0) -> bool:
        """Return whether a message of so many bytes may be sent to a person."""
        if not person or self._at_most.get(person, 0) + count <= PERSON_BYTES:
            return True
        self._look(person)
        largest = max((count, *self._lumps(person)))
        return self._at_most[person] + count - largest <= PERSON_BYTES

    def takes_no_more(self, person: PublicKey) -> bool:
        """Return whether not even a sentence may be sent to a person."""
        return not self.has_room(person, -SENTENCES_BYTES)

    def is_tracked(self, person: PublicKey, peer: bytes, count: int) -> bool:
        """Return whether a message of so many bytes that zmq is to take on this connection is to be tracked."""
        return bool(person) and self._connection(person, peer).untracked + count >= LUMP_BYTES

    def take(self, person: PublicKey, peer: bytes, count: int, tracker: Tracker | None) -> None:
        """Note a message that zmq has taken."""
        if not person:
            return
        connection = self._connection(person, peer)
        connection.untracked += count
        if tracker is not None:
            connection.lumps.append((tracker, connection.untracked))
            self._at_most[person] = self._at_most.get(person, 0) + connection.untracked
            connection.untracked = 0

    def wait(self, person: PublicKey, peer: bytes, count: int) -> None:
        """Note bytes that begin to wait, or, where there are fewer than none, that wait no more."""
        if person:
            self._connection(person, peer).waiting += count
            self._at_most[person] = self._at_most.get(person, 0) + count

    def keep_only(self, known: Callable[[bytes], bool]) -> None:
        """Forget the connections that are not known any more once zmq is done with their messages."""
        for person, connections in tuple(self._persons.items()):
            self._look(person)
            for peer, connection in tuple(connections.items()):
                if not (connection.lumps or connection.waiting or known(peer)):
                    del connections[peer]
            if not connections:
                del self._persons[person], self._at_most[person]

    def _look(self, person: PublicKey) -> None:
        """Look what a person has read since. Less than LUMP_BYTES a connection are not counted."""
        for connection in self._persons.get(person, {}).values():
            while connection.lumps and connection.lumps[0][0].done:
                connection.lumps.popleft()
        waiting = sum(connection.waiting for connection in self._persons.get(person, {}).values())
        self._at_most[person] = waiting + sum(self._lumps(person))

    def _lumps(self, person: PublicKey) -> Iterator[int]:
        for connection in self._persons.get(person, {}).values():
            yield from (count for _, count in connection.lumps)

    def _connection(self, person: PublicKey, peer: bytes) -> _Connection:
        return self._persons.setdefault(person, {}).setdefault(peer, _Connection())


def bytes_of(frames: Sequence[codec.WireFrame]) -> int:
    """Return the memory that a message takes."""
    return MESSAGE_BYTES + sum(memoryview(frame).nbytes for frame in frames)
