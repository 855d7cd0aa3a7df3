"""A request's round trip to the service and to the engine's thread: idle, during a decode, during a prefill, and while
a text of 4 MB is tokenized."""

from __future__ import annotations

import json
import random
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from time import perf_counter

import djinn_jupyter
from benchmarks.measuring import Spread, ratios
from benchmarks.results import Bar, Checks, Figure, Result, at_most
from benchmarks.serving_engine import engine_of
from benchmarks.setting import Setting
from benchmarks.worker import worker
from djinn_jupyter.client.engine import RemoteEngine
from djinn_jupyter.client.session import RemoteSession
from djinn_jupyter.experiments.serving import random_tokens
from djinn_jupyter.wire import protocol
from djinn_jupyter.wire.replies import Reply
from djinn_jupyter.wire.requests import Tokenize

IDLE_MILLISECONDS, DECODE_MILLISECONDS = 0.3, 1.0
REQUESTS, PASSES = 300, 5
DECODED, PREFILLED, TEXTS = 120, 1000, 3
LONGEST_PAUSE = 0.02
TEXT_CHARACTERS, TEXT_MILLISECONDS = 3_999_999, 20.0
DEMO = Path(djinn_jupyter.__file__).parent / "demo" / "model"

Ask = Callable[[], object]


def run(setting: Setting) -> Result:
    shape, checks = setting.shape(), Checks()
    with worker("plain") as plain:
        folder = setting.saved(plain, shape)
    with engine_of(folder, setting) as engine:
        kinds = _kinds(engine, engine.session("asking", fresh=True))
        busy = engine.session("busy", fresh=True)
        long, short = random_tokens(PREFILLED, shape.vocabulary), random_tokens(8, shape.vocabulary)
        figures = [
            *_idle(kinds, setting.rounds(REQUESTS)),
            *_while_decoding(kinds, busy, short, setting.rounds(PASSES), checks),
            *_while_prefilling(kinds, busy, long, setting.rounds(PASSES), shape.layers, checks),
        ]
    with _unbounded_demo() as folder, engine_of(folder, setting) as engine:
        figures += _while_tokenizing(engine, setting.rounds(TEXTS), checks)
    settings = {"shape": shape, "idle_requests": REQUESTS, "passes": setting.rounds(PASSES), "prefilled": PREFILLED}
    return Result(benchmark="round_trip", settings=settings, figures=tuple(figures), checks=checks.counts)


def _kinds(engine: RemoteEngine, session: RemoteSession) -> dict[str, Ask]:
    """Return a request of each kind. The service itself answers ping and status; the engine's thread answers a
    session's verb, between layers."""
    return {"ping": engine.ping, "status": engine.statistics, "session verb": session.describe}


def _idle(kinds: dict[str, Ask], count: int) -> list[Figure]:
    times: dict[str, list[float]] = {name: [] for name in kinds}
    for _ in range(count):
        for name, ask in kinds.items():
            times[name].append(_timed(ask))
    return [_figure(f"{name}, idle engine", times[name], at_most(IDLE_MILLISECONDS)) for name in kinds]


def _while_decoding(
    kinds: dict[str, Ask], busy: RemoteSession, prompt: list[int], passes: int, checks: Checks
) -> list[Figure]:
    times: dict[str, list[float]] = {name: [] for name in kinds}
    for _ in range(passes):
        with _running(busy, prompt, DECODED, checks) as still:
            _sample(kinds, times, still, LONGEST_PAUSE)
    return [_figure(f"{name}, during a decode", times[name], at_most(DECODE_MILLISECONDS)) for name in kinds]


def _while_prefilling(
    kinds: dict[str, Ask], busy: RemoteSession, prompt: list[int], passes: int, layers: int, checks: Checks
) -> list[Figure]:
    """Return round trips as a ratio of one layer's time: the same prefill's time alone, by the number of layers."""
    figures = []
    times: dict[str, list[float]] = {name: [] for name in kinds}
    of_layer: dict[str, list[float]] = {name: [] for name in kinds}
    for _ in range(passes):
        layer = _timed(lambda: busy.run(prompt, max_new_tokens=0)) / layers
        met: dict[str, list[float]] = {name: [] for name in kinds}
        with _running(busy, prompt, 0, checks) as still:
            _sample(kinds, met, still, layer)
        for name, values in met.items():
            times[name] += values
            of_layer[name] += ratios(values, [layer] * len(values))
    for name in kinds:
        figures.append(
            Figure(
                name=f"{name}, during a prefill of {PREFILLED} positions, of one layer's time",
                unit="x",
                value=Spread.of(of_layer[name]),
                bar=at_most(1.0),
                sides={"round trip": _milliseconds(times[name])},
                sides_unit="ms",
            )
        )
    return figures


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
        _sample(kinds, times, partial(_pending, text), LONGEST_PAUSE)
        refused.append(type(text.exception()).__name__)
    checks.same("texts that were read and counted", refused, ["PromptTooLong"] * texts)
    return [_figure(f"{name}, during a text of 4 MB", times[name], at_most(TEXT_MILLISECONDS)) for name in kinds]


def _pending(reply: Future[Reply]) -> bool:
    return not reply.done()


@contextmanager
def _running(busy: RemoteSession, prompt: list[int], new: int, checks: Checks) -> Iterator[Callable[[], bool]]:
    """Run the busy session in a thread of its own; the yielded function is true while it runs."""
    outcomes: list[str] = []

    def work() -> None:
        outcomes.append(type(busy.run(prompt, max_new_tokens=new, ignore_eos=True)).__name__)

    thread = threading.Thread(target=work)
    thread.start()
    time.sleep(LONGEST_PAUSE)
    try:
        yield thread.is_alive
    finally:
        thread.join()
    checks.same("runs that were asked around", outcomes, ["Finished"])


def _sample(kinds: dict[str, Ask], times: dict[str, list[float]], still: Callable[[], bool], pause: float) -> None:
    """Send requests at random moments while the other session runs; a reply after its end is not counted. A session's
    verb is answered between two layers, so `pause` has to be as long as a layer, or all are sent at the start of one.
    """
    moments = random.Random(0)
    while True:
        for name, ask in kinds.items():
            time.sleep(moments.uniform(0, pause))
            seconds = _timed(ask)
            if not still():
                return
            times[name].append(seconds)


def _timed(ask: Ask) -> float:
    begun = perf_counter()
    ask()
    return perf_counter() - begun


def _figure(name: str, seconds: list[float], bar: Bar) -> Figure:
    return Figure(name=name, unit="ms", value=_milliseconds(seconds), bar=bar)


def _milliseconds(seconds: list[float]) -> Spread | None:
    return Spread.of(1000 * s for s in seconds)
