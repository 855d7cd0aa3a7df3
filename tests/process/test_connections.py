"""The connections of a service, by their descriptors, which the system gives again to others."""

from __future__ import annotations

import errno
import os
import socket
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import zmq

from djinn_jupyter.errors import EngineError
from djinn_jupyter.remote.engine import connections as its_module
from djinn_jupyter.remote.engine.connections import NO_DESCRIPTORS, Connections
from djinn_jupyter.wire.pieces import WHOLE_BYTES
from tests.waiting import until

ADA = b"ada's key"
QUIET_MILLISECONDS = 50  # in which zmq would have accepted more, if it did


@pytest.fixture
def connections() -> Iterator[Connections]:
    with zmq.Context() as context, context.socket(zmq.ROUTER) as router:
        connections = Connections(router, lambda peer: True, lambda peer: ADA)
        yield connections
        connections.close()
        router.close(linger=0)


@dataclass
class Door:
    """A listener for strangers and one in a private folder, of which no one reads messages."""

    port: int
    path: str


@pytest.fixture
def door(connections: Connections, tmp_path: Path) -> Door:
    for endpoint in ("tcp://127.0.0.1:*", f"ipc://{tmp_path / 'x'}"):
        connections._router.bind(endpoint)
        connections.listen(connections._router.getsockopt_string(zmq.LAST_ENDPOINT))
        if endpoint.startswith("tcp"):
            port = int(connections._router.getsockopt_string(zmq.LAST_ENDPOINT).rpartition(":")[2])
    return Door(port, str(tmp_path / "x"))


@dataclass
class Sender:
    """The first frame of a message."""

    bytes: bytes
    descriptor: int

    def get(self, option: int) -> int:
        assert option == zmq.SRCFD
        return self.descriptor


def test_a_message_read_late_leaves_the_next_connections_descriptor_to_that_one(connections: Connections) -> None:
    connections._peers[20] = None
    for peer in (b"gone", b"here"):
        connections.note(Sender(peer, 20), 0)
    assert connections._peers == {20: b"here"}


def test_a_client_is_refused_in_a_sentence_where_no_file_can_be_opened(
    connections: Connections, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none_left(*_: Any) -> list[str]:
        raise OSError(errno.EMFILE, "Too many open files")

    connections.require_room()
    monkeypatch.setattr(os, "listdir", none_left)
    with pytest.raises(EngineError) as refused:
        connections.require_room()
    assert str(refused.value) == NO_DESCRIPTORS


@pytest.mark.skipif(sys.platform != "linux", reason="only there libzmq can be told to wait")
def test_connections_are_let_in_one_by_one(connections: Connections, door: Door) -> None:
    with ExitStack() as strangers:
        for _ in range(8):
            strangers.enter_context(socket.create_connection(("127.0.0.1", door.port)))
        for there in range(1, 9):
            until(lambda: connections.monitor.poll(QUIET_MILLISECONDS), "one more is let in")
            connections.read_events()
            assert len(connections._peers) == there


@pytest.mark.skipif(sys.platform != "linux", reason="only there libzmq can be told to wait")
def test_strangers_leave_descriptors_to_local_clients_and_both_leave_some(
    connections: Connections, door: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Twelve are free, of which strangers leave eight."""
    connections._kept_free = 4
    monkeypatch.setattr(its_module, "_free", lambda limit: 12 - len(connections._peers))
    with ExitStack() as clients:
        for _ in range(20):
            clients.enter_context(socket.create_connection(("127.0.0.1", door.port)))
        while connections.monitor.poll(QUIET_MILLISECONDS):
            connections.read_events()
        assert len(connections._peers) == 4
        for _ in range(20):
            clients.enter_context(socket.socket(socket.AF_UNIX)).connect(door.path)
        while connections.monitor.poll(QUIET_MILLISECONDS):
            connections.read_events()
        assert len(connections._peers) == 11
        assert len(connections.at_door) == 4


GREETING = b"\xff" + b"\0" * 8 + b"\x7f\x03\0NULL" + b"\0" * 48
READY = b"\x05READY\x0bSocket-Type\0\0\0\x06DEALER"
TINY_AND_MORE = b"\x01\x01x"  # a frame of one byte, after which more come


def _stranger(door: Door) -> socket.socket:
    """Return a connection of a client that speaks the protocol of ZMQ itself."""
    made = socket.create_connection(("127.0.0.1", door.port))
    made.sendall(GREETING + bytes([4, len(READY)]) + READY)
    return made


@pytest.mark.skipif(sys.platform != "linux", reason="only there the system tells what a connection has sent")
def test_who_sends_a_message_without_an_end_loses_the_connection_and_zmq_drops_it(
    connections: Connections, door: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(its_module, "UNFINISHED_BYTES", 3 * WHOLE_BYTES)
    with _stranger(door) as endless, _stranger(door) as other:
        until(lambda: connections.read_events() or len(connections.at_door) == 2, "both are let in")
        connections.look()
        frames = TINY_AND_MORE * (WHOLE_BYTES // len(TINY_AND_MORE))
        endless.sendall(2 * frames)
        until(lambda: connections.look() or connections.unfinished, "a message is coming")
        assert len(connections.at_door) == 2
        other.sendall(b"\0\x01y")
        assert connections._router.poll(10_000)
        connections.look()  # not all that zmq has is read
        peer = connections._router.recv(copy=False)
        connections.note(peer, 1)
        assert connections._router.recv() == b"y"
        endless.sendall(2 * frames)
        until(lambda: connections.look() or len(connections.at_door) == 1, "it is closed")
        until(lambda: connections.monitor.poll(0), "zmq has closed it")
        assert not connections._router.poll(QUIET_MILLISECONDS)
        other.sendall(b"\0\x01z")
        assert connections._router.poll(10_000)


@pytest.mark.skipif(sys.platform != "linux", reason="only there the system tells what a connection has sent")
@pytest.mark.parametrize("known", [True, False])
def test_whose_connections_send_halves_of_messages_loses_the_largest(
    connections: Connections, door: Door, monkeypatch: pytest.MonkeyPatch, known: bool
) -> None:
    monkeypatch.setattr(its_module, "PERSON_UNFINISHED_BYTES", 8 * WHOLE_BYTES)
    monkeypatch.setattr(connections, "_knows", lambda peer: known)
    with ExitStack() as stack:
        halves = [stack.enter_context(_stranger(door)) for _ in range(3)]
        until(lambda: connections.read_events() or len(connections.at_door) == 3, "all are let in")
        for one in halves:
            one.sendall(b"\0\x01y")
            assert connections._router.poll(10_000)
            connections.note(connections._router.recv(copy=False), 1)
            connections._router.recv()
        looked = connections._looked  # what arrives before the next check may count to the message that was read
        until(lambda: connections.look() or connections._looked > looked, "the whole messages are counted")
        for one, count in zip(halves, (3, 4, 2), strict=True):
            one.sendall(b"\x02" + (8 * WHOLE_BYTES).to_bytes(8, "big") + bytes(count * WHOLE_BYTES))
        until(lambda: connections.look() or len(connections.at_door) == 2, "one is closed")
        assert halves[1].recv(65536)[:1] == GREETING[:1]
        until(lambda: halves[1].recv(65536) == b"", "it is the largest")
        looked = connections._looked
        until(lambda: connections.look() or connections._looked > looked, "the others fit")
        assert len(connections.at_door) == 2
        assert connections.unfinished


@pytest.mark.skipif(sys.platform != "linux", reason="only there the system tells what a connection has sent")
def test_who_sends_many_messages_that_end_keeps_the_connection(
    connections: Connections, door: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(its_module, "UNFINISHED_BYTES", 3 * WHOLE_BYTES)
    with _stranger(door) as client:
        until(lambda: connections.read_events() or connections.at_door, "it is let in")
        for _ in range(8):
            client.sendall(b"\x02" + WHOLE_BYTES.to_bytes(8, "big") + b"x" * WHOLE_BYTES)
            assert connections._router.poll(10_000)
            connections.note(connections._router.recv(copy=False), WHOLE_BYTES)
            assert len(connections._router.recv()) == WHOLE_BYTES
            connections.look()
        assert connections.at_door
        assert not connections.unfinished
