"""Requests at random moments while other work runs, each timed until its reply."""

from __future__ import annotations

import json
import random
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from functools import partial
from itertools import count
from pathlib import Path
from time import perf_counter
from typing import Final

import zmq

import djinn_jupyter
import djinn_jupyter as dj
from djinn_evaluation.benchmarks.harness import (
    Bar,
    Checks,
    Figure,
    Result,
    Setting,
    Spread,
    at_most,
    engine_of,
    in_milliseconds,
    pid_of,
    worker,
)
from djinn_evaluation.benchmarks.workers.clients import ASKED
from djinn_evaluation.intervals import ratios
from djinn_evaluation.serving import random_tokens
from djinn_jupyter.api.engine import RemoteEngine
from djinn_jupyter.api.session import RemoteSession
from djinn_jupyter.api.stops import Paused
from djinn_jupyter.link.channel import expect
from djinn_jupyter.wire import protocol
from djinn_jupyter.wire.replies import Reply
from djinn_jupyter.wire.requests import Tokenize

Ask = Callable[[], object]
LONGEST_PAUSE: Final = 0.02  # seconds: a layer's time, or more


def sample(kinds: Mapping[str, Ask], times: dict[str, list[float]], still: Callable[[], bool], pause: float) -> None:
    """Send requests at random moments, at most `pause` apart, while the other work runs; late replies do not count."""
    moments = random.Random(0)
    while True:
        for name, ask in kinds.items():
            time.sleep(moments.uniform(0, pause))
            seconds = timed(ask)
            if not still():
                return
            times[name].append(seconds)


@contextmanager
def under_way(work: Ask, ended: list[object]) -> Iterator[Callable[[], bool]]:
    """Do the work in a thread, its result added to `ended`; the yielded function is true until it is done."""
    thread = threading.Thread(target=lambda: ended.append(work()))
    thread.start()
    time.sleep(LONGEST_PAUSE)
    try:
        yield thread.is_alive
    finally:
        thread.join()


def timed(ask: Ask) -> float:
    """Return the seconds until its reply."""
    begun = perf_counter()
    ask()
    return perf_counter() - begun


IDLE_MILLISECONDS = {"ping": 0.3, "status": 0.3, "session verb": 0.45}
DECODE_MILLISECONDS = {"ping": 1.0, "status": 1.0}
ECHOED = 640  # bytes: a session's description
REQUESTS, PASSES = 300, 5
DECODED, PREFILLED, TEXTS = 120, 1000, 3
TEXT_CHARACTERS, TEXT_MILLISECONDS = 3_999_999, 20.0
DEMO = Path(djinn_jupyter.__file__).parent / "demo" / "model"


def run_round_trip(setting: Setting) -> Result:
    """A request's round trip to the service and to the engine's thread: idle, during a decode, during a prefill, and
    while a text of 4 MB is tokenized. Beside the idle ones stands an echo: bare sockets of the same kind, with as
    many bytes."""
    shape, checks = setting.shape(), Checks()
    with engine_of(setting.model(shape), setting) as engine:
        kinds = _kinds_of_round_trip(engine, engine.session("asking", fresh=True))
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


def _kinds_of_round_trip(engine: RemoteEngine, session: RemoteSession) -> dict[str, Ask]:
    """Return a request of each kind: two answered by the service, one by the engine's thread."""
    return {"ping": engine.ping, "status": engine.statistics, "session verb": session.describe}


@contextmanager
def _echo(setting: Setting) -> Iterator[Ask]:
    """Yield a round trip to a process that only sends back what it gets."""
    endpoint, message = f"ipc://{setting.home}/echo", b"." * ECHOED
    with worker("clients") as there, zmq.Context() as context, context.socket(zmq.DEALER) as dealer:
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
    """Return round trips in a decode; the engine's thread's as a ratio of one layer's time alone."""
    times, of_layer = _while_running(kinds, busy, prompt, DECODED, passes, layers, checks)
    plain = [
        _figure_of_round_trip(f"{name}, during a decode", times[name], at_most(bar))
        for name, bar in DECODE_MILLISECONDS.items()
    ]
    return [*plain, _of_layer("session verb, during a decode", of_layer["session verb"], times["session verb"])]


def _while_prefilling(
    kinds: dict[str, Ask], busy: RemoteSession, prompt: list[int], passes: int, layers: int, checks: Checks
) -> list[Figure]:
    """Return round trips as a ratio of one layer's time: the same prefill's time alone, by the number of layers."""
    times, of_layer = _while_running(kinds, busy, prompt, 0, passes, layers, checks)
    during = f"during a prefill of {PREFILLED} positions"
    return [_of_layer(f"{name}, {during}", of_layer[name], times[name]) for name in kinds]


def _while_running(
    kinds: dict[str, Ask], busy: RemoteSession, prompt: list[int], new: int, passes: int, layers: int, checks: Checks
) -> tuple[dict[str, list[float]], dict[str, list[float]]]:
    """Return the seconds of requests during runs, and their ratios to one layer's time in the same run alone."""
    times, of_layer = ({name: list[float]() for name in kinds} for _ in range(2))
    for _ in range(passes):
        layer = timed(lambda: busy.run(prompt, max_new_tokens=new, ignore_eos=True)) / max(new, 1) / layers
        met: dict[str, list[float]] = {name: [] for name in kinds}
        with _running(busy, prompt, new, checks) as still:
            sample(kinds, met, still, LONGEST_PAUSE if new else layer)
        for name, values in met.items():
            times[name] += values
            of_layer[name] += ratios(values, [layer] * len(values))
    return times, of_layer


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
    return [
        _figure_of_round_trip(f"{name}, during a text of 4 MB", times[name], at_most(TEXT_MILLISECONDS))
        for name in kinds
    ]


def _pending(reply: Future[Reply]) -> bool:
    return not reply.done()


@contextmanager
def _running(busy: RemoteSession, prompt: list[int], new: int, checks: Checks) -> Iterator[Callable[[], bool]]:
    """Run the busy session in a thread of its own; the yielded function is true while it runs."""
    ended: list[object] = []
    with under_way(lambda: busy.run(prompt, max_new_tokens=new, ignore_eos=True), ended) as still:
        yield still
    checks.same("runs that were asked around", [type(done).__name__ for done in ended], ["Finished"])


def _figure_of_round_trip(name: str, seconds: list[float], bar: Bar) -> Figure:
    return Figure(name=name, unit="ms", value=in_milliseconds(seconds), bar=bar)


LAYER_MILLISECONDS = 20.0
POSITIONS, PROMPTS, LENGTH, ROWS, NEW, SHORT = 24, 128, 32, 32, 20, 8
ROUNDS, IDLE, ASKED_AGAIN = 3, 40, 10
SHARE = 0.95  # of the requests of a kind: so many are answered within the second figure


def run_beside(setting: Setting) -> Result:
    """Another session's verbs while a sweep, a collection or a batch computes many lines at once: each a request at a
    random moment, until its reply. The bar is the time that a layer of the chunk may take. Likewise pings, while
    another client asks for as much as a request may name: of these the slowest hundredth is held to the bar. Wall
    clock."""
    shape, checks, figures = setting.shape(), Checks(), list[Figure]()
    with engine_of(setting.model(shape), setting) as engine, tempfile.TemporaryDirectory(dir=setting.home) as place:
        kinds = _kinds_of_beside(engine, shape.vocabulary)
        idle: dict[str, list[float]] = {name: [] for name in kinds}
        for _ in range(setting.rounds(IDLE)):
            for name, ask in kinds.items():
                idle[name].append(timed(ask))
        for work, do in _works(engine, setting, Path(place)).items():
            do()  # with the tests of the family, which only the first has
            times: dict[str, list[float]] = {name: [] for name in kinds}
            for _ in range(setting.rounds(ROUNDS)):
                ended: list[object] = []
                with under_way(do, ended) as still:
                    sample(kinds, times, still, LONGEST_PAUSE)
                checks.same(f"times that {work} came to its end", len(ended), 1)
            figures += [_figure_of_beside(f"{name}, beside {work}", times[name], idle[name]) for name in kinds]
            setting.so_far(figures, f"up to {work}")
        figures += _beside_much(engine, setting, checks)
    settings = {"shape": shape, "rounds": setting.rounds(ROUNDS), "idle_requests": setting.rounds(IDLE)}
    return Result(benchmark="beside", settings=settings, figures=tuple(figures), checks=checks.counts)


def _kinds_of_beside(engine: RemoteEngine, vocabulary: int) -> dict[str, Ask]:
    """Return the verbs by their kind. Two sessions are stopped: one is read, the other runs again."""
    prompt = random_tokens(SHORT, vocabulary, 1)
    looked_at, running = (_stopped(engine.session(name, fresh=True), prompt) for name in ("looked at", "running"))

    return {
        "describe": looked_at.describe,
        "read an array": lambda: looked_at.inspect().value,
        "set a breakpoint": lambda: looked_at.breakpoint("resid_post.3", when="step == 7"),
        "clear it": lambda: looked_at.clear("resid_post.3"),
        "run a short prompt to its stop": lambda: _run(running, prompt),
    }


def _stopped(session: RemoteSession, prompt: list[int]) -> RemoteSession:
    session.breakpoint("resid_post.0")
    _run(session, prompt)
    return session


def _run(session: RemoteSession, prompt: list[int]) -> Paused:
    return expect(session.run(prompt, max_new_tokens=1, ignore_eos=True), Paused)


def _works(engine: RemoteEngine, setting: Setting, place: Path) -> dict[str, Ask]:
    shape = setting.shape()
    lines = [random_tokens(POSITIONS, shape.vocabulary, seed) for seed in (1, 2)]
    prompts = [random_tokens(LENGTH, shape.vocabulary, seed) for seed in range(PROMPTS)]
    rows = [random_tokens(LENGTH // 2, shape.vocabulary, seed) for seed in range(ROWS)]
    folders, batch = count(), engine.session("batch", fresh=True)

    def sweep() -> object:
        asked = {"site": "resid_post", "over": ("layer", "position"), "metric": "logit(3)"}
        return dj.sweep(engine, clean=lines[0], corrupted=lines[1], **asked)  # type: ignore[arg-type]

    return {
        "a sweep": sweep,
        "a collection": lambda: engine.collect(
            prompts, f"resid_post.{shape.layers // 2}", to=place / str(next(folders)), positions=-1
        ),
        "a batch": lambda: batch.run(rows, max_new_tokens=NEW, ignore_eos=True, mode="fast"),
    }


def _beside_much(engine: RemoteEngine, setting: Setting, checks: Checks) -> list[Figure]:
    """Return the pings while another client asks for much."""
    figures, asked = [], setting.rounds(ASKED_AGAIN)
    with worker("clients.Heavy") as other:
        for what in ASKED:
            pings: dict[str, list[float]] = {"ping": []}
            ended: list[object] = []
            ask_again = partial(other.ask, "ask_again", pid=pid_of(engine), what=what, times=asked)
            with under_way(ask_again, ended) as still:
                sample({"ping": engine.ping}, pings, still, LONGEST_PAUSE)
            checks.same(f"replies to {what}", ended, [{"replies": asked}])
            late = sorted(pings["ping"])[int(0.99 * len(pings["ping"])) :]
            figures.append(
                Figure(
                    name=f"the slowest 1% of pings, beside {what}",
                    unit="ms",
                    value=in_milliseconds(late),
                    bar=at_most(LAYER_MILLISECONDS),
                    sides={"all": in_milliseconds(pings["ping"])},
                    sides_unit="ms",
                )
            )
    return figures


def _figure_of_beside(name: str, times: list[float], idle: list[float]) -> Figure:
    late = sorted(times)[int(SHARE * len(times)) :]
    return Figure(
        name=name,
        unit="ms",
        value=in_milliseconds(times),
        bar=at_most(LAYER_MILLISECONDS),
        sides={"idle": in_milliseconds(idle), f"the slowest {1 - SHARE:.0%}": in_milliseconds(late)},
        sides_unit="ms",
    )
