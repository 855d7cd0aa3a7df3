"""A live service under fire: garbage of every kind is sent, an honest client is served in between, none is hurt."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
import zmq
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from djinn_jupyter.wire import codec, protocol
from djinn_jupyter.wire.replies import Opened, Pong, Welcome
from djinn_jupyter.wire.requests import Goodbye, Open, Ping, Request, Shutdown
from tests.process.peers import RawClient
from tests.process.served import Served, served
from tests.wire import strategies

LIMIT = 2**20
FIRE = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


class Raw(RawClient):
    """Others' replies come in between, to what it sent under any number."""

    def __init__(self, context: zmq.Context[Any], house: Served) -> None:
        super().__init__(context, house.entry, RCVTIMEO=10_000)
        self.number = 10_000_000

    def reply_to(self, number: int) -> Any:
        while (envelope := self.receive()).id != number:
            pass
        return envelope.body


@pytest.fixture(scope="module")
def house() -> Iterator[Served]:
    with served(message_bytes=LIMIT) as house:
        yield house
        assert house.service.statistics().pending == 0


@pytest.fixture(scope="module")
def context() -> Iterator[zmq.Context]:
    context = zmq.Context()
    yield context
    context.term()


@pytest.fixture(scope="module")
def honest(house: Served, context: zmq.Context) -> Iterator[Raw]:
    client = Raw(context, house)
    assert isinstance(client.ask(protocol.hello(holder="honest", user="ada")), Welcome)
    assert isinstance(client.ask(Open(session="mine")), Opened)
    yield client
    client.close()


@pytest.fixture(scope="module")
def attacker(house: Served, context: zmq.Context) -> Iterator[Raw]:
    """A DEALER that has said Hello, so that the service checks its messages as closely as can be."""
    client = Raw(context, house)
    assert isinstance(client.ask(protocol.hello(holder="attacker", user="eve")), Welcome)
    yield client
    client.close()


@FIRE
@given(frames=st.lists(st.binary(max_size=300), min_size=1, max_size=5))
def test_noise_hurts_nobody(honest: Raw, attacker: Raw, frames: list[bytes]) -> None:
    attacker.send_frames(frames)
    assert honest.ask(Ping()) == Pong()


@FIRE
@given(data=st.data())
def test_changed_messages_hurt_nobody(honest: Raw, attacker: Raw, data: st.DataObject) -> None:
    request = data.draw(strategies.of(Request).filter(lambda r: not isinstance(r, Shutdown | Goodbye)))
    frames = [bytearray(f) for f in codec.encode(data.draw(st.integers(0, 5)), request)]
    frame = frames[data.draw(st.integers(0, len(frames) - 1))]
    if frame:
        place = data.draw(st.integers(0, len(frame) - 1))
        if data.draw(st.booleans()):
            frame[place] = data.draw(st.integers(0, 255))
        else:
            del frame[place:]
    attacker.send_frames([bytes(f) for f in frames])
    assert honest.ask(Ping()) == Pong()
    assert attacker.ask(Ping()) == Pong()


def test_an_oversized_message_costs_its_sender_the_connection(house: Served, context: zmq.Context, honest: Raw) -> None:
    rude = Raw(context, house)
    rude.send_frames([bytes(LIMIT + 1)])
    rude.send_frames([b"small", bytes(LIMIT + 1)])
    assert honest.ask(Ping()) == Pong()
    assert honest.ask(Open(session="mine"))
    rude.close()


def test_of_too_many_frames_only_those_are_kept_that_it_takes_to_refuse_them(
    honest: Raw, attacker: Raw, monkeypatch: pytest.MonkeyPatch
) -> None:
    decode, kept = codec.decode_request, []
    monkeypatch.setattr(codec, "decode_request", lambda frames: kept.append(len(frames)) or decode(frames))
    attacker.send_frames([*codec.encode(77, Ping()), *[b""] * (3 * codec.MAX_FRAMES)])
    refused = attacker.reply_to(77)
    assert refused.code == "MessageTooLarge"
    assert f"more than {codec.MAX_FRAMES} frames" in refused.message
    assert attacker.ask(Ping()) == honest.ask(Ping()) == Pong()
    assert max(kept) == codec.MAX_FRAMES + 1  # clients of other tests may ask in this process too


def test_what_claims_more_than_it_carries_is_refused(honest: Raw, attacker: Raw) -> None:
    body = {"request": "ApplyEdit", "session": "mine", "edit": {"edit": "set", "value": None}}
    for header in (
        {"dtype": "float64", "shape": [2**62, 2**62], "frame": 0},
        {"dtype": "float64", "shape": [-1], "frame": 0},
        {"dtype": "object", "shape": [1], "frame": 0},
        {"dtype": "uint8", "shape": [1] * 100, "frame": 0},
        {"dtype": "uint8", "shape": [1], "frame": -1},
        {"dtype": "uint8", "shape": [1], "frame": 2**40},
        {"dtype": "uint8", "shape": ["1"], "frame": 0},
    ):
        body["edit"]["value"] = header
        attacker.send_frames([msgspec.msgpack.encode({"id": 1, "body": body}), b"x"])
        assert honest.ask(Ping()) == Pong()


def test_the_books_say_what_was_turned_away(house: Served, attacker: Raw) -> None:
    before = house.service.statistics()
    attacker.send_frames([b"noise"])
    attacker.send_frames([msgspec.msgpack.encode({"id": 1, "body": {"request": "Explode"}})])
    assert attacker.ask(Ping()) == Pong()
    after = house.service.statistics()
    assert (after.dropped - before.dropped, after.refused - before.refused) == (1, 1)
