"""A live engine under fire by its own user, and by a person with a key over a line: requests of every type with any
values, changed ones, and noise. A neighbour beside it gets the bits it always gets, in about the time that it always
takes, and its pings are answered."""

from __future__ import annotations

import random
import statistics
import time
from pathlib import Path
from typing import Any

import pytest
import zmq

import djinn_jupyter as dj
from djinn_evaluation.machine import computed_on
from djinn_jupyter.api.engine import RemoteEngine
from djinn_jupyter.api.session import RemoteSession
from djinn_jupyter.link.registry import running_engines
from djinn_jupyter.remote.addresses import entry_at, read_address
from djinn_jupyter.wire import requests as ask
from tests.engine.cases import KINDS, QUALITIES, Case
from tests.process.peers import Peer
from tests.wire import values

PROMPT = [1, 5, 6, 7, 8, 9, 10, 11]
STEPS = 100
NAMES = ("victim", "a", "other", "nobody", "another name")
ATTACKS = [kind for kind in KINDS if kind not in (ask.Shutdown, ask.Goodbye)]
VOLLEY = 100
ALLOWED = 100.0  # times what the neighbour waits when it is quiet, on cores that are shared
LEAST_SECONDS = 5.0


class Attacker(Peer):
    """Sends any bytes, after Hello, and reads the replies. Every second one comes over the line, by a key."""

    def __init__(self, engine: RemoteEngine, context: zmq.Context[Any], seed: int) -> None:
        entry = engine.entry
        by = entry_at(read_address(entry.listens or ""), "ada") if seed % 2 else entry
        super().__init__(by, context, holder=f"eve {seed}", user="eve")
        self._random = random.Random(seed)
        self.answered = 0

    def fire(self) -> None:
        frames = self._message()
        match self._random.randrange(10):
            case 0:
                frames = [self._random.randbytes(self._random.randrange(1, 300)) for _ in range(3)]
            case 1 | 2 | 3:
                frames = self._changed(frames)
        self.send_frames(frames)

    def settle(self) -> None:
        super().settle()
        self.answered += sum(map(len, self.replies.values())) - 1
        self.replies.clear()

    def _message(self) -> list[bytes]:
        """Draw any request with any values, as its frames."""
        kind = self._random.choice(ATTACKS)
        fields = self._random.choice(values.requests(kind, self._random.choice(QUALITIES)))
        return Case(kind, fields, self._random.choice(NAMES)).frames(self.next_number())

    def _changed(self, frames: list[bytes]) -> list[bytes]:
        which = self._random.randrange(len(frames))
        frame = bytearray(frames[which])
        if frame:
            at = self._random.randrange(len(frame))
            match self._random.randrange(3):
                case 0:
                    frame[at] = self._random.randrange(256)
                case 1:
                    del frame[at:]
                case 2:
                    frame[at:at] = self._random.randbytes(3)
        return [*frames[:which], bytes(frame) or b"\0", *frames[which + 1 :]]


class Neighbour:
    """A client that goes on by a token at a time; `expected` and `usual`: its logits and waits without attack."""

    def __init__(self, engine: RemoteEngine) -> None:
        self._session: RemoteSession = engine.session("neighbour")
        self._at = 0
        self.expected: list[bytes] = []
        self.waits: list[float] = []
        for _ in range(STEPS):
            self.expected.append(self._step())
        self.usual = statistics.median(self.waits)
        self.waits.clear()

    def goes_on(self) -> None:
        at = self._at
        assert self._step() == self.expected[at]

    def _step(self) -> bytes:
        begun = time.monotonic()
        if self._at == 0:
            done = self._session.run(PROMPT, max_new_tokens=1, ignore_eos=True)
        else:
            done = self._session.run([], max_new_tokens=1, extend=True, ignore_eos=True)
        bits = done.logits.tobytes()
        self.waits.append(time.monotonic() - begun)
        self._at = (self._at + 1) % STEPS
        return bits


@pytest.fixture
def engine(keys: None, forked: None, llama: Path) -> RemoteEngine:
    return dj.load(llama, dtype="float32", device=computed_on(), threads=1, listen="tcp://127.0.0.1:*")


def _under_fire(engine: RemoteEngine, messages: int) -> None:
    entry = engine.entry
    neighbour = Neighbour(engine)
    context: zmq.Context[Any] = zmq.Context()
    beside = Peer(entry, context, holder="beside", user="ben")
    attackers = [Attacker(engine, context, seed) for seed in range(8)]
    order = random.Random(0)
    for _ in range(messages // VOLLEY):
        for attacker in order.choices(attackers, k=VOLLEY):
            attacker.fire()
        beside.settle()
        neighbour.goes_on()
        for attacker in attackers:
            attacker.settle()
    for one in (*attackers, beside):
        one.close()
    context.term()
    assert running_engines() == (entry,)
    statistics = engine.statistics()
    assert (statistics.faults, statistics.last_fault) == (0, None)
    assert sum(attacker.answered for attacker in attackers) > messages // 3
    assert max(neighbour.waits) < max(LEAST_SECONDS, ALLOWED * neighbour.usual)
    unknown = [line for line in Path(entry.log).read_text().splitlines() if "the engine does not know" in line]
    assert unknown == []


@pytest.mark.alone
def test_a_live_engine_under_fire_serves_its_neighbour_as_ever(engine: RemoteEngine) -> None:
    _under_fire(engine, 5_200)


@pytest.mark.slow
@pytest.mark.alone
@pytest.mark.timeout(3600)
def test_a_live_engine_under_long_fire_serves_its_neighbour_as_ever(engine: RemoteEngine) -> None:
    _under_fire(engine, 50_000)
