"""One bar for the neighbour, whatever another asks again and again: the 99th percentile of 500 Pings is at most 20 ms,
or three times that of an echo that is pinged in turn with them. The echo's process computes meanwhile, as the engine's
does: a busy machine lets an idle process run at once, and one that computes waits for its turn. Every long list of
every request is tried at its limit; here a few kinds, the others in the slow tests."""

from __future__ import annotations

import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter
from typing import Any

import msgspec
import pytest
import zmq

import djinn_jupyter as dj
from djinn_evaluation.machine import computed_on
from djinn_jupyter.api.engine import RemoteEngine
from djinn_jupyter.methods.circuits.request import AttributeEdges, RunCircuits
from djinn_jupyter.methods.datasets.request import Score
from djinn_jupyter.methods.sweep.request import Sweep
from djinn_jupyter.wire import codec, protocol
from djinn_jupyter.wire import requests as ask
from tests.engine.requests.test_large_requests import BESIDE, LARGE, LINES
from tests.families import build
from tests.process.asking import NUMBER
from tests.process.echoes import COMPUTE, REST, echo
from tests.process.peers import Peer
from tests.wire import largest

PINGS = 500
SECONDS, ECHOES = 0.02, 3
PAIRS = tuple((number % 300, number % 300) for number in range(2**18))
EDGES: dict[str, Any] = {"corrupted": (1, 2), "clean": (1, 3), "metric": "logit(1)"}
OTHERS: dict[str, Callable[[str], ask.Request]] = {
    "four million edges": lambda name: RunCircuits(session=name, circuits=(PAIRS,) * 16, **EDGES),
    "64 MiB of prompts": lambda name: Score(session=name, prompts=((1,) * 1000,) * 65_000),
    "a text": lambda name: ask.Tokenize(text="x" * 4_000_000),
}
SHORT = {(AttributeEdges, "chosen"), (Sweep, "align"), (Score, "prompts"), (ask.Run, "tokens")}
OF_TYPES = [
    pytest.param(*one, marks=() if one in SHORT else pytest.mark.slow, id=f"{one[0].__name__} {one[1]}")
    for one in LARGE
]
pytestmark = pytest.mark.alone


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RemoteEngine]:
    folder = tmp_path_factory.mktemp("neighbours")
    build("llama").save_pretrained(folder)
    engine = dj.load(folder, dtype="float32", device=computed_on(), threads=1)
    yield engine
    engine.stop(force=True)


@pytest.mark.parametrize(("kind", "path"), OF_TYPES)
def test_a_ping_is_answered_while_another_asks_with_a_list_at_its_limit(
    engine: RemoteEngine, kind: type, path: str, tmp_path: Path
) -> None:
    beside = BESIDE.get(kind, LINES)
    _require_neighbour(engine, list(largest.requests(kind, path, session=tmp_path.name, **beside)), tmp_path)


@pytest.mark.parametrize("what", OTHERS)
def test_a_ping_is_answered_while_another_asks_for_much(engine: RemoteEngine, what: str, tmp_path: Path) -> None:
    _require_neighbour(engine, [OTHERS[what](tmp_path.name)], tmp_path)


def _require_neighbour(engine: RemoteEngine, asked: list[Any], folder: Path) -> None:
    with zmq.Context() as context, echo() as bare:
        neighbour = Peer(engine.entry, context, "neighbour", "ada")
        with _another_asks(engine.entry.commands, asked, folder):
            times = [(_seconds(lambda: neighbour.ask(ask.Ping())), _seconds_beside_work(bare)) for _ in range(PINGS)]
        neighbour.ask(ask.Close(session=folder.name, force=True))
        neighbour.close()
    ping, echoed = (statistics.quantiles(one, n=100)[-1] for one in zip(*times, strict=True))
    assert ping <= max(SECONDS, ECHOES * echoed), (ping, echoed)


@contextmanager
def _another_asks(endpoint: str, asked: list[Any], folder: Path) -> Iterator[None]:
    """Have another client ask for these in turn meanwhile, in a session of the folder's name."""
    hello = protocol.hello(holder="other", user="eve")
    file = folder / "asked"
    first = (hello, ask.Open(session=folder.name))
    file.write_bytes(msgspec.msgpack.encode([codec.encode(NUMBER, one) for one in (*first, *asked)]))
    command = [sys.executable, "-m", "tests.process.asking", endpoint, str(file)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout.readline() == "asking\n"
        yield
        assert other.poll() is None
        other.kill()


def _seconds(work: Callable[[], object]) -> float:
    begun = perf_counter()
    work()
    return perf_counter() - begun


def _seconds_beside_work(bare: Callable[..., object]) -> float:
    bare(COMPUTE)
    seconds = _seconds(bare)
    bare(REST)
    return seconds
