"""A request's round trip to the service and to the engine's thread: idle, during a decode, during a prefill, and while
a text of 4 MB is tokenized. Beside the idle ones stands an echo: bare sockets of the same kind, with as many bytes."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import zmq

import djinn_jupyter
from djinn_evaluation.benchmarks.asking import LONGEST_PAUSE, Ask, sample, timed, under_way
from djinn_evaluation.benchmarks.measuring import Spread, in_milliseconds
from djinn_evaluation.benchmarks.results import Bar, Checks, Figure, Result, at_most
from djinn_evaluation.benchmarks.serving_engine import engine_of
from djinn_evaluation.benchmarks.setting import Setting
from djinn_evaluation.benchmarks.worker import worker
from djinn_evaluation.intervals import ratios
from djinn_evaluation.serving import random_tokens
from djinn_jupyter.api.engine import RemoteEngine
from djinn_jupyter.api.session import RemoteSession
from djinn_jupyter.wire import protocol
from djinn_jupyter.wire.replies import Reply
from djinn_jupyter.wire.requests import Tokenize

IDLE_MILLISECONDS = {"ping": 0.3, "status": 0.3, "session verb": 0.45}
DECODE_MILLISECONDS = {"ping": 1.0, "status": 1.0}
ECHOED = 640  # bytes: a session's description
REQUESTS, PASSES = 300, 5
DECODED, PREFILLED, TEXTS = 120, 1000, 3
TEXT_CHARACTERS, TEXT_MILLISECONDS = 3_999_999, 20.0
DEMO = Path(djinn_jupyter.__file__).parent / "demo" / "model"


def run(setting: Setting) -> Result:
    shape, checks = setting.shape(), Checks()
    with worker("plain") as plain:
        folder = setting.saved(plain, shape)
    with engine_of(folder, setting) as engine:
        kinds = _kinds(engine, engine.session("asking", fresh=True))
        busy = engine.session("busy", fresh=True)
        long, short = random_tokens(PREFILLED, shape.vocabulary), random_tokens(8, shape.vocabulary)
        with _echo(setting) as echo:
            figures = _idle(kinds, echo, setting.rounds(REQUESTS))
        setting.so_far(figures, "idle")
        figures += [
            *_while_decoding(kinds, busy, short, setting.rounds(PASSES), shape.layers, checks),
            *_while_prefilling(kinds, busy, long, setting.rounds(PASSES), shape.layers, checks),
        ]
        setting.so_far(figures, "idle, in a decode and in a prefill")
    with _unbounded_demo() as folder, engine_of(folder, setting) as engine:
        figures += _while_tokenizing(engine, setting.rounds(TEXTS), checks)
    settings = {"shape": shape, "idle_requests": REQUESTS, "passes": setting.rounds(PASSES), "prefilled": PREFILLED}
    return Result(benchmark="round_trip", settings=settings, figures=tuple(figures), checks=checks.counts)


def _kinds(engine: RemoteEngine, session: RemoteSession) -> dict[str, Ask]:
    """Return a request of each kind. The service itself answers ping and status; the engine's thread answers a
    session's verb, between layers."""
    return {"ping": engine.ping, "status": engine.statistics, "session verb": session.describe}


@contextmanager
def _echo(setting: Setting) -> Iterator[Ask]:
    """Yield a round trip to a process that only sends back what it gets."""
    endpoint, message = f"ipc://{setting.home}/echo", b"." * ECHOED
    with worker("echo") as there, zmq.Context() as context, context.socket(zmq.DEALER) as dealer:
        there.ask("bind", endpoint=endpoint)
        dealer.connect(endpoint)

        def ask() -> bytes:
            dealer.send(message)
            return dealer.recv()

        ask()
        yield ask


def _idle(kinds: dict[str, Ask], echo: Ask, count: int) -> list[Figure]:
    times: dict[str, list[float]] = {name: [] for name in (*kinds, "echo")}
    for _ in range(count):
        for name, ask in {**kinds, "echo": echo}.items():
            times[name].append(timed(ask))
    beside = {"a bare echo": in_milliseconds(times["echo"])}
    return [
        Figure(
            name=f"{name}, idle engine",
            unit="ms",
            value=in_milliseconds(times[name]),
            bar=at_most(IDLE_MILLISECONDS[name]),
            sides=beside,
            sides_unit="ms",
        )
        for name in kinds
    ]


def _while_decoding(
    kinds: dict[str, Ask], busy: RemoteSession, prompt: list[int], passes: int, layers: int, checks: Checks
) -> list[Figure]:
    """Return round trips of what the service answers itself, and those of the engine's thread as a ratio of one layer's
    time: the same decode's time alone, by its tokens and the number of layers."""
    times: dict[str, list[float]] = {name: [] for name in kinds}
    of_layer: list[float] = []
    for _ in range(passes):
        layer = timed(lambda: busy.run(prompt, max_new_tokens=DECODED, ignore_eos=True)) / DECODED / layers
        met: dict[str, list[float]] = {name: [] for name in kinds}
        with _running(busy, prompt, DECODED, checks) as still:
            sample(kinds, met, still, LONGEST_PAUSE)
        for name, values in met.items():
            times[name] += values
        of_layer += [seconds / layer for seconds in met["session verb"]]
    plain = [
        _figure(f"{name}, during a decode", times[name], at_most(bar)) for name, bar in DECODE_MILLISECONDS.items()
    ]
    return [*plain, _of_layer("session verb, during a decode", of_layer, times["session verb"])]


def _while_prefilling(
    kinds: dict[str, Ask], busy: RemoteSession, prompt: list[int], passes: int, layers: int, checks: Checks
) -> list[Figure]:
    """Return round trips as a ratio of one layer's time: the same prefill's time alone, by the number of layers."""
    times: dict[str, list[float]] = {name: [] for name in kinds}
    of_layer: dict[str, list[float]] = {name: [] for name in kinds}
    for _ in range(passes):
        layer = timed(lambda: busy.run(prompt, max_new_tokens=0)) / layers
        met: dict[str, list[float]] = {name: [] for name in kinds}
        with _running(busy, prompt, 0, checks) as still:
            sample(kinds, met, still, layer)
        for name, values in met.items():
            times[name] += values
            of_layer[name] += ratios(values, [layer] * len(values))
    during = f"during a prefill of {PREFILLED} positions"
    return [_of_layer(f"{name}, {during}", of_layer[name], times[name]) for name in kinds]


def _of_layer(name: str, ratios_: list[float], times: list[float]) -> Figure:
    return Figure(
        name=f"{name}, of one layer's time",
        unit="x",
        value=Spread.of(ratios_),
        bar=at_most(1.0),
        sides={"round trip": in_milliseconds(times)},
        sides_unit="ms",
    )


@contextmanager
def _unbounded_demo() -> Iterator[str]:
    """Yield the demo model with a tokenizer that strips texts: no text can be refused by its length alone."""
    with tempfile.TemporaryDirectory() as folder:
        shutil.copytree(DEMO, folder, dirs_exist_ok=True)
        path = Path(folder) / "tokenizer.json"
        strips = {"type": "Strip", "strip_left": True, "strip_right": True}
        path.write_text(json.dumps({**json.loads(path.read_text()), "normalizer": strips}))
        yield folder


def _while_tokenizing(engine: RemoteEngine, texts: int, checks: Checks) -> list[Figure]:
    session = engine.session("asking", fresh=True)
    hello = protocol.hello(holder=engine.holder, user="benchmark")
    kinds: dict[str, Ask] = {
        "ping": engine.ping,
        "pause": session.pause,
        "hello": lambda: engine.channel.ask(hello).result(),
    }
    times: dict[str, list[float]] = {name: [] for name in kinds}
    refused = []
    for _ in range(texts):
        text = engine.channel.ask(Tokenize(text="a" * TEXT_CHARACTERS))
        sample(kinds, times, partial(_pending, text), LONGEST_PAUSE)
        refused.append(type(text.exception()).__name__)
    checks.same("texts that were read and counted", refused, ["PromptTooLong"] * texts)
    return [_figure(f"{name}, during a text of 4 MB", times[name], at_most(TEXT_MILLISECONDS)) for name in kinds]


def _pending(reply: Future[Reply]) -> bool:
    return not reply.done()


@contextmanager
def _running(busy: RemoteSession, prompt: list[int], new: int, checks: Checks) -> Iterator[Callable[[], bool]]:
    """Run the busy session in a thread of its own; the yielded function is true while it runs."""
    ended: list[object] = []
    with under_way(lambda: busy.run(prompt, max_new_tokens=new, ignore_eos=True), ended) as still:
        yield still
    checks.same("runs that were asked around", [type(done).__name__ for done in ended], ["Finished"])


def _figure(name: str, seconds: list[float], bar: Bar) -> Figure:
    return Figure(name=name, unit="ms", value=in_milliseconds(seconds), bar=bar)
