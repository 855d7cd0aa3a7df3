"""Raw connections to an engine: they may send bytes that the product's own client never sends."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import zmq

from djinn_jupyter.remote.handshake import set_keys
from djinn_jupyter.wire import codec, protocol
from djinn_jupyter.wire import requests as ask
from djinn_jupyter.wire.registry import Entry
from djinn_jupyter.wire.replies import Pong

PATIENCE_MILLISECONDS = 120_000


class RawClient:
    """A DEALER that sends any frames, with the keys of both sides where the entry is that of an engine at an address.
    `events` are those that came before the replies."""

    def __init__(self, context: zmq.Context[Any], entry: Entry, **options: int) -> None:
        self.socket = context.socket(zmq.DEALER)
        for name, value in {"LINGER": 0, "RCVTIMEO": PATIENCE_MILLISECONDS, **options}.items():
            self.socket.setsockopt(getattr(zmq, name), value)
        if entry.commands.startswith("tcp://"):
            set_keys(self.socket, entry)
        self.socket.connect(entry.commands)
        self.number = 0
        self.events: list[Any] = []

    def send(self, request: ask.Request) -> int:
        """Send a request; return the number that its reply will have."""
        self.number += 1
        self.send_frames(codec.encode(self.number, request))
        return self.number

    def send_frames(self, frames: Sequence[codec.WireFrame]) -> None:
        self.socket.send_multipart(frames)

    def receive(self) -> codec.Envelope[Any]:
        """Return the next reply."""
        while codec.is_event(frames := self.socket.recv_multipart()):
            self.events.append(codec.decode_event(frames).body)
        return codec.decode_reply(frames)

    def reply_to(self, number: int) -> Any:
        """Return the next reply, which has to be that one."""
        envelope = self.receive()
        assert envelope.id == number
        return envelope.body

    def ask(self, request: ask.Request) -> Any:
        return self.reply_to(self.send(request))

    def close(self) -> None:
        self.socket.close()


class Peer:
    """A DEALER, with the keys of both sides where the entry is that of an engine at an address. `replies` are all that
    came, by the number of the request that they answer."""

    def __init__(self, entry: Entry, context: zmq.Context[Any], holder: str, user: str) -> None:
        self._hello = protocol.hello(holder=holder, user=user)
        self._number = 2**40
        self.replies: defaultdict[int, list[Any]] = defaultdict(list)
        self._socket = context.socket(zmq.DEALER)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.setsockopt(zmq.SNDHWM, 0)
        if entry.commands.startswith("tcp://"):
            set_keys(self._socket, entry)
        self._socket.connect(entry.commands)
        self.greet()

    def greet(self) -> None:
        self.send(self._hello)

    def send(self, request: ask.Request) -> int:
        """Send a request; return the number that its reply will have."""
        number = self.next_number()
        self.send_frames(codec.encode(number, request))
        return number

    def send_frames(self, frames: Sequence[codec.WireFrame]) -> None:
        self._socket.send_multipart(frames)

    def next_number(self) -> int:
        self._number += 1
        return self._number

    def receive(self, milliseconds: int = PATIENCE_MILLISECONDS) -> bool:
        """Read the next reply, and the events before it; return False where none came in that time."""
        while self._socket.poll(milliseconds):
            frames = self._socket.recv_multipart()
            if not codec.is_event(frames):
                told = codec.decode_reply(frames)
                self.replies[told.id].append(told.body)
                return True
        return False

    def ask(self, request: ask.Request) -> Any:
        return self.reply_to(self.send(request))

    def reply_to(self, number: int) -> Any:
        """Return the reply of that number; others may come before it."""
        while not self.replies[number]:
            assert self.receive(), f"no reply to request {number}"
        return self.replies[number][0]

    def settle(self) -> None:
        """Return when the service has read everything sent so far. The messages sent may have borne any number."""
        number = self.send(ask.Ping())
        while Pong() not in self.replies[number]:
            assert self.receive(), "no reply to a ping"

    def close(self) -> None:
        self._socket.close()
