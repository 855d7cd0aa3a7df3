"""Another session's verbs while a sweep, a collection or a batch computes many lines at once: each a request at a
random moment, until its reply. The bar is the time that a layer of the chunk may take. Likewise pings, while another
client asks for as much as a request may name: of these the slowest hundredth is held to the bar. Wall clock."""

from __future__ import annotations

import tempfile
from functools import partial
from itertools import count
from pathlib import Path

import djinn_jupyter as dj
from djinn_evaluation.benchmarks.asking import LONGEST_PAUSE, Ask, sample, timed, under_way
from djinn_evaluation.benchmarks.measuring import in_milliseconds
from djinn_evaluation.benchmarks.results import Checks, Figure, Result, at_most
from djinn_evaluation.benchmarks.serving_engine import engine_of, pid_of
from djinn_evaluation.benchmarks.setting import Setting
from djinn_evaluation.benchmarks.worker import worker
from djinn_evaluation.benchmarks.workers.heavy import ASKED
from djinn_evaluation.serving import random_tokens
from djinn_jupyter.api.engine import RemoteEngine
from djinn_jupyter.api.session import RemoteSession
from djinn_jupyter.api.stops import Paused
from djinn_jupyter.link.channel import expect

LAYER_MILLISECONDS = 20.0
POSITIONS, PROMPTS, LENGTH, ROWS, NEW, SHORT = 24, 128, 32, 32, 20, 8
ROUNDS, IDLE, ASKED_AGAIN = 3, 40, 10
SHARE = 0.95  # of the requests of a kind: so many are answered within the second figure


def run(setting: Setting) -> Result:
    shape, checks, figures = setting.shape(), Checks(), list[Figure]()
    with worker("plain") as plain:
        folder = setting.saved(plain, shape)
    with engine_of(folder, setting) as engine, tempfile.TemporaryDirectory(dir=setting.home) as place:
        kinds = _kinds(engine, shape.vocabulary)
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
            figures += [_figure(f"{name}, beside {work}", times[name], idle[name]) for name in kinds]
            setting.so_far(figures, f"up to {work}")
        figures += _beside_much(engine, setting, checks)
    settings = {"shape": shape, "rounds": setting.rounds(ROUNDS), "idle_requests": setting.rounds(IDLE)}
    return Result(benchmark="beside", settings=settings, figures=tuple(figures), checks=checks.counts)


def _kinds(engine: RemoteEngine, vocabulary: int) -> dict[str, Ask]:
    """Return the verbs by what they do. Two sessions stand at a stop: one is looked at, the other runs again."""
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
    with worker("heavy") as other:
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


def _figure(name: str, times: list[float], idle: list[float]) -> Figure:
    late = sorted(times)[int(SHARE * len(times)) :]
    return Figure(
        name=name,
        unit="ms",
        value=in_milliseconds(times),
        bar=at_most(LAYER_MILLISECONDS),
        sides={"idle": in_milliseconds(idle), f"the slowest {1 - SHARE:.0%}": in_milliseconds(late)},
        sides_unit="ms",
    )
