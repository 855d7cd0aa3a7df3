"""The connections of a service, by their descriptors, which the system gives again to others."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import zmq

from djinn_jupyter.engine.process.connections import NO_DESCRIPTORS, Connections
from djinn_jupyter.errors import EngineError


@pytest.fixture
def connections() -> Iterator[Connections]:
    with zmq.Context() as context, context.socket(zmq.ROUTER) as router:
        connections = Connections(router, lambda peer: True)
        yield connections
        connections.close()


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
        connections.note(Sender(peer, 20))  # type: ignore[arg-type]
    assert (connections._peers, connections._descriptors) == ({20: b"here"}, {b"here": 20})


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
