"""The bytes of messages that each person has not read: those that wait here for room, and those that zmq has.

zmq tells by a tracker that it is done with a message, which takes about 60 µs of two threads; so of a connection's
messages one in LUMP_BYTES is tracked. They leave in order: one that is done stands for all before it. Knows no sockets;
called from one thread.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

from djinn_jupyter.wire import codec
from djinn_jupyter.wire.keys import PublicKey

PERSON_BYTES: Final = 512 * 2**20
"""That one person may leave unread, beside one message of any size."""
SENTENCES_BYTES: Final = 16 * 2**20  # more, of sentences that say so; beyond them nothing is sent
MESSAGE_BYTES: Final = 500  # of Python and zmq for a message, besides its frames
LUMP_BYTES: Final = 64 * 2**10
FULL_SECONDS: Final = 30.0  # without reading anything, after which a connection is closed


class Tracker(Protocol):
    @property
    def done(self) -> bool: ...


@dataclass(slots=True)
class _Connection:
    waiting: int = 0
    untracked: int = 0  # bytes that zmq took since the last tracked message
    lumps: deque[tuple[Tracker, int]] = field(default_factory=deque)


@dataclass(slots=True)
class _Person:
    connections: dict[bytes, _Connection] = field(default_factory=dict)
    bytes: int = 0  # of all that waits, and of all lumps
    largest: tuple[Tracker, int] | None = None  # of the lumps since the one before was read
    full_since: float | None = None


class Unread:
    """A person is a public key, and has connections by their routing ids. The empty key is the engine's own user, of
    whom nothing is counted. Nothing is walked: a lump is looked at when it comes and when it has gone."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._persons: dict[PublicKey, _Person] = {}

    def has_room(self, person: PublicKey, count: int = 0) -> bool:
        """Return whether a message of so many bytes may be sent to a person."""
        theirs = self._persons.get(person)
        if theirs is None:
            return True
        has_room = self._takes(theirs, count)
        if has_room != (theirs.full_since is None):
            theirs.full_since = None if has_room else self._clock()
        return has_room

    def takes_no_more(self, person: PublicKey) -> bool:
        """Return whether not even a sentence may be sent to a person."""
        return person in self._persons and not self._takes(self._persons[person], -SENTENCES_BYTES)

    @property
    def full(self) -> tuple[PublicKey, ...]:
        """The persons who had no room when it was last asked. May be read from any thread."""
        return tuple(person for person, theirs in tuple(self._persons.items()) if theirs.full_since is not None)

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
            lump = tracker, connection.untracked
            connection.untracked = 0
            connection.lumps.append(lump)
            theirs = self._persons[person]
            theirs.bytes += lump[1]
            if theirs.largest is None or lump[1] > theirs.largest[1]:
                theirs.largest = lump

    def wait(self, person: PublicKey, peer: bytes, count: int) -> None:
        """Note bytes that begin to wait, or, where there are fewer than none, that wait no more."""
        if person:
            self._connection(person, peer).waiting += count
            self._persons[person].bytes += count

    def keep_only(self, known: Callable[[bytes], bool]) -> list[bytes]:
        """Forget the connections that are not known any more once zmq is done with their messages. Return those of
        persons who have read nothing for so long that there is no room for them since FULL_SECONDS."""
        stuck: list[bytes] = []
        for person, theirs in tuple(self._persons.items()):
            self._look(theirs)
            self.has_room(person)
            for peer, connection in tuple(theirs.connections.items()):
                if not (connection.lumps or connection.waiting or known(peer)):
                    del theirs.connections[peer]
            if not theirs.connections:
                del self._persons[person]
            elif theirs.full_since is not None and self._clock() - theirs.full_since > FULL_SECONDS:
                stuck += [peer for peer, one in theirs.connections.items() if one.lumps or one.waiting]
        return stuck

    def _takes(self, theirs: _Person, count: int) -> bool:
        if theirs.bytes + count > PERSON_BYTES:
            self._look(theirs)
        largest = max(count, theirs.largest[1] if theirs.largest else 0)  # goes beside the bound
        return theirs.bytes + count - largest <= PERSON_BYTES

    def _look(self, theirs: _Person) -> None:
        """Look what a person has read since. Less than LUMP_BYTES a connection are not counted."""
        for connection in theirs.connections.values():
            while connection.lumps and connection.lumps[0][0].done:
                theirs.bytes -= connection.lumps.popleft()[1]
                theirs.full_since = None if theirs.full_since is None else self._clock()
        if theirs.largest is not None and theirs.largest[0].done:
            theirs.largest = None

    def _connection(self, person: PublicKey, peer: bytes) -> _Connection:
        return self._persons.setdefault(person, _Person()).connections.setdefault(peer, _Connection())


def bytes_of(frames: Sequence[codec.WireFrame]) -> int:
    """Return the memory that a message takes."""
    return MESSAGE_BYTES + sum(memoryview(frame).nbytes for frame in frames)
