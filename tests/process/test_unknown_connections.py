"""Whose a message is follows from the key of its connection alone, and that of one which is not known is nobody's: no
verb of theirs reaches the engine, in whatever state the connection is."""

from __future__ import annotations

import errno
import itertools
import os
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pytest
import zmq
from zmq.utils import z85
from zmq.utils.monitor import recv_monitor_message

from djinn_jupyter.engine.process.clients import ClientTable
from djinn_jupyter.engine.process.inbox import Message
from djinn_jupyter.engine.process.registration import SocketFolder
from djinn_jupyter.engine.process.seam import UNKNOWN_KEY
from djinn_jupyter.engine.process.sender import Outbox
from djinn_jupyter.engine.process.service import Service, draw
from djinn_jupyter.remote.engine.access_keys import Door, Doorkeeper
from djinn_jupyter.remote.handshake import set_keys
from djinn_jupyter.wire import codec, kinds, protocol
from djinn_jupyter.wire import requests as ask
from djinn_jupyter.wire.arrays import Array
from djinn_jupyter.wire.codec import PART_BYTES
from djinn_jupyter.wire.keys import LOCAL, KeyFolder, PublicKey
from djinn_jupyter.wire.pieces import Assemble, DropPieces, PutPiece, ReadPiece
from djinn_jupyter.wire.replies import Failed, Reply, Welcome
from tests.process.admitted import admitted, entry_of
from tests.process.fake_engine import FakeEngine
from tests.process.served import served
from tests.waiting import SECONDS, until
from tests.wire import values

pytestmark = pytest.mark.usefixtures("runtime")
PEER = b"the same"
VERBS = [
    kind(
        **{
            **values.requests(kind, "ordinary")[0],
            **({"session": "main"} if issubclass(kind, ask.SessionRequest) else {}),
        }
    )
    for kind in kinds.known().requests
    if kind is not ask.Shutdown
]
HELLO = protocol.hello(holder="kernel-1", user="root")


@pytest.fixture
def keys() -> KeyFolder:
    return admitted()


class Driven:
    """A service without its thread, whose messages and turns are the test's."""

    def __init__(self, keys: KeyFolder) -> None:
        self.keys, outbox, self.engine = keys, Outbox(), FakeEngine()
        self.folder = SocketFolder()
        clients = ClientTable(self.engine, shut_down=lambda: None)
        door = Door.at("tcp://127.0.0.1:*", draw)
        self.service = Service(clients, outbox, commands=self.folder.endpoint("commands"), door=door)
        self.service._sender.send_frames = self._sent
        self.replies: dict[int, Reply] = {}
        self.numbers = itertools.count(1)

    def _sent(self, client: bytes, number: int, frames: list[codec.WireFrame]) -> None:
        self.replies[number] = codec.decode_reply(frames).body

    def key(self, name: str) -> PublicKey:
        return self.keys.own(name).public

    def come(self, key: PublicKey, request: ask.Request, *, large: bool = False) -> int:
        """Have a message come on the connection; a large one is decoded in parts. Return its number."""
        number = next(self.numbers)
        self.service._take(Message(PEER, key, _large(number, request) if large else codec.encode(number, request)))
        return number

    def answered(self, number: int) -> Reply:
        while self.service._large.busy:
            self.service._large.go_on()
        until(lambda: self.service._send_waiting(woken=False) or number in self.replies, "it is answered")
        return self.replies[number]

    def greet(self, key: PublicKey, token: str = "") -> None:
        hello = msgspec.structs.replace(HELLO, token=token)
        assert isinstance(self.answered(self.come(key, hello)), Welcome)

    def revoked(self) -> None:
        self.keys.revoke("anna")

    def admit_again(self) -> None:
        self.keys.allow(self.key("anna"), "anna")


@pytest.fixture
def driven(keys: KeyFolder) -> Iterator[Driven]:
    driven = Driven(keys)
    yield driven
    driven.service.stop()
    driven.folder.remove()


def _no_key(driven: Driven, verb: ask.Request) -> int:
    return driven.come(UNKNOWN_KEY, verb)


def _unknown_key(driven: Driven, verb: ask.Request) -> int:
    return driven.come(driven.key("eve"), verb)


def _revoked(driven: Driven, verb: ask.Request) -> int:
    driven.admit_again()
    driven.greet(driven.key("anna"))
    driven.revoked()
    return driven.come(driven.key("anna"), verb)


def _revoked_while_read(driven: Driven, verb: ask.Request) -> int:
    driven.admit_again()
    driven.greet(driven.key("anna"))
    number = driven.come(driven.key("anna"), verb, large=True)
    driven.revoked()
    return number


def _revoked_while_assembled(driven: Driven, verb: ask.Request) -> int:
    """The message comes in pieces, which are put together and read in parts."""
    driven.admit_again()
    anna, token = driven.key("anna"), f"token {next(driven.numbers)}"
    driven.greet(anna, token)
    number = next(driven.numbers)
    (whole,) = _large(number, verb)
    piece = PutPiece(of=number, start=0, count=len(whole), sizes=(len(whole),), content=Array.of_bytes(whole))
    assert not isinstance(driven.answered(driven.come(anna, piece)), Failed)
    driven.service._take(Message(PEER, anna, codec.encode(number, Assemble())))
    driven.revoked()
    return number


def _large(number: int, request: ask.Request) -> list[bytes]:
    """Return a message that is decoded in parts, and that is none in the end."""
    envelope = msgspec.msgpack.decode(codec.encode(number, request)[0])
    return [msgspec.msgpack.encode({**envelope, "body": {**envelope["body"], "unknown": "x" * 2 * PART_BYTES}})]


STATES = (_no_key, _unknown_key, _revoked, _revoked_while_read, _revoked_while_assembled)


@pytest.mark.parametrize("state", STATES, ids=lambda state: state.__name__.removeprefix("_"))
def test_no_verb_of_one_who_is_not_admitted_reaches_the_engine(
    driven: Driven, state: Callable[[Driven, ask.Request], int]
) -> None:
    for verb in VERBS:
        number = state(driven, verb)
        requests = driven.service.statistics().requests
        reply = driven.answered(number)
        assert isinstance(reply, Failed), verb
        assert reply.code == "KeyRefused", (verb, reply)
        assert driven.service.statistics().requests == requests, verb
    assert driven.engine.sessions == {}


PIECES = (Assemble, ReadPiece, DropPieces, PutPiece)
FOR_A_PERSON = (
    "say Hello first",
    "is for its user alone",
    "is for the user whose engine it is",
    "cannot be shared with them",
    "is a folder of the engine",
)


@pytest.mark.parametrize("comes", ["bert", "local"])
@pytest.mark.parametrize("before", ["anna", "local"])
def test_no_verb_counts_as_another_persons_whose_routing_id_it_has(driven: Driven, before: str, comes: str) -> None:
    """Pieces are looked for under the name of a client, which has none here."""
    of = {"local": LOCAL, **{name: driven.key(name) for name in ("anna", "bert")}}
    for verb in VERBS:
        if isinstance(verb, (ask.Hello, *PIECES)) or before == comes:
            continue
        driven.greet(of[before])
        reply = driven.answered(driven.come(of[comes], verb))
        assert isinstance(reply, Failed), verb
        assert any(said in reply.message for said in FOR_A_PERSON), (verb, reply)
    assert driven.engine.sessions == {}


def test_a_verb_of_the_engines_own_user_is_taken(driven: Driven) -> None:
    """The other tests would hold of a service that takes nothing."""
    driven.greet(LOCAL)
    for verb in VERBS:
        if not isinstance(verb, (ask.Hello, ask.Goodbye, Assemble)):
            before = driven.service.statistics().requests
            driven.come(LOCAL, verb)
            assert driven.service.statistics().requests == before + 1, verb


def test_what_waits_for_the_engine_keeps_its_person_when_its_client_is_forgotten(driven: Driven) -> None:
    """One who has not said Hello is known as long as a reply is to come, and then nobody."""
    number = driven.come(LOCAL, ask.Ping())
    driven.service._sweep()
    assert driven.service._key_of(PEER) == LOCAL
    assert "say Hello first" in str(driven.answered(number))
    driven.service._sweep()
    assert driven.service._key_of(PEER) == UNKNOWN_KEY


def test_where_no_one_answers_handshakes_none_is_let_in(keys: KeyFolder) -> None:
    """libzmq lets all in, without a name, where nothing answers its questions."""
    with served(tcp=True) as house, zmq.Context() as context, context.socket(zmq.DEALER) as stranger:
        house.service._authenticator.stop()
        stranger.setsockopt(zmq.LINGER, 0)
        set_keys(stranger, entry_of(house, "eve"))
        told = stranger.get_monitor_socket(zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED)
        stranger.connect(entry_of(house, "eve").commands)
        stranger.send_multipart(codec.encode(1, HELLO))
        assert told.poll(1000 * SECONDS)
        assert recv_monitor_message(told)["event"] == zmq.EVENT_DISCONNECTED
        stranger.disable_monitor()
        house.service._authenticator.start()
        assert house.service.statistics().requests == 0


def test_a_folder_of_keys_that_cannot_be_read_for_a_moment_admits_no_one_for_that_moment_alone(
    keys: KeyFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For want of descriptors; an error in a handshake's answer would end all handshakes."""
    door, anna = Door.at("tcp://127.0.0.1:*", draw), keys.own("anna").public
    clock = 0.0
    monkeypatch.setattr("djinn_jupyter.wire.keys.time.monotonic", lambda: clock)
    keeper = Doorkeeper(door)

    def none_left(*path: Any) -> Any:
        raise OSError(errno.EMFILE, "Too many open files")

    os.utime(keys.folder("allowed"), (1, 1))  # long settled
    with monkeypatch.context() as few:
        few.setattr(os, "listdir", none_left)
        few.setattr(os, "scandir", none_left)
        assert not keeper.callback("djinn", z85.encode(anna))
    clock += 2
    assert door.admitted.name_of(anna) == "anna"
