"""The benchmarks that `make gpu` runs too, at their smallest, with engine and plain side in this process.

Their logic and what they compare, on the device of the run; their figures mean nothing here.
"""

from __future__ import annotations

import importlib
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from djinn_evaluation.benchmarks import generating, stops
from djinn_evaluation.benchmarks.environments import NotRun
from djinn_evaluation.benchmarks.harness import MODULE_OF, Disagreement, Figure, Setting, Shape, benchmark
from djinn_evaluation.benchmarks.workers import plain
from tests.engine.desk import Desk
from tests.engine.memory.weights.saved import desk_from
from tests.faults.inside import moved
from tests.threads import one_thread

TINIEST = Shape(layers=8, width=64, heads=4, vocabulary=512, positions=1056)
WORKERS = {
    "plain": plain.Plain,
    "plain.Features": plain.Features,
    "plain.Batched": plain.Batched,
    "plain.Link": plain.Link,
}
NAMES = (
    "attribution", "batches", "breakpoints", "collection", "features", "fork", "generation", "patching", "prefetch",
    "resume", "rules", "stop", "swap", "sweep",
)  # fmt: skip


class NearWorker:
    """Stands for a worker's process: the same code, and arguments and answers as JSON has them."""

    pid = os.getpid()

    def __init__(self, module: str) -> None:
        self._asked = WORKERS[module]()

    def ask(self, verb: str, **arguments: Any) -> dict[str, Any]:
        answered: dict[str, Any] = getattr(self._asked, verb)(**json.loads(json.dumps(arguments)))
        return json.loads(json.dumps(answered))

    def seconds(self, verb: str, **arguments: Any) -> float:
        return float(self.ask(verb, **arguments)["seconds"])


@contextmanager
def near_worker(module: str, python: object = None) -> Iterator[NearWorker]:
    yield NearWorker(module)


def absent(tool: str) -> Path:
    raise NotRun(f"{tool} is not here")


@pytest.fixture(scope="module")
def desks() -> dict[str, Desk]:
    return {}


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("models")


@pytest.fixture
def near(home: Path, desks: dict[str, Desk], monkeypatch: pytest.MonkeyPatch) -> Iterator[Setting]:
    """A setting whose engines and workers are in this process; models of one shape have one engine."""

    @contextmanager
    def engine_of(folder: str, setting: Setting) -> Iterator[Any]:
        desk = desks.setdefault(folder, desks.get(folder) or desk_from(Path(folder)))
        with moved(desk) as engine:
            yield engine
        desk.close_all()

    for name in {"harness", *(MODULE_OF[name] for name in NAMES)}:
        module = importlib.import_module(f"djinn_evaluation.benchmarks.{name}")
        for part, double in (("engine_of", engine_of), ("worker", near_worker), ("python_of", absent)):
            if hasattr(module, part):
                monkeypatch.setattr(module, part, double)
    monkeypatch.setattr(Setting, "shape", lambda self, usual=None: TINIEST)
    monkeypatch.setattr(Setting, "rounds", lambda self, usual: 1)
    for module, fewer in ((stops, {"NEW_OF_BREAKPOINTS": 8, "NEW_OF_LENS": 4}), (generating, {"NEW_OF_BATCHES": 5})):
        for constant, value in fewer.items():
            monkeypatch.setattr(module, constant, value)
    with one_thread():
        yield Setting(quick=True, threads=1, home=home, results=home)


@pytest.mark.parametrize("name", NAMES)
def test_a_benchmark_measures_what_it_says_and_its_sides_agree(name: str, near: Setting) -> None:
    kept: list[list[Figure]] = []
    setting = replace(near, so_far=lambda figures, how_far: kept.append(list(figures)))
    found = benchmark(name)(setting)
    assert found.checks
    names = [figure.name for figure in found.figures]
    assert len(set(names)) == len(names)
    for figure in found.figures:
        assert (figure.value is None) == (figure.not_run is not None), figure.name
    for figures in kept:
        assert {figure.name for figure in figures} <= set(names)
    assert kept or name in ("features", "fork", "prefetch")  # these have all of their figures at once, or after a round


def test_a_side_that_computes_other_tokens_ends_the_benchmark(near: Setting, monkeypatch: pytest.MonkeyPatch) -> None:
    own = plain.Plain.generate

    def other(self: Any, tokens: list[int], new: int) -> dict[str, Any]:
        made = own(self, tokens, new)
        return {**made, "tokens": [*made["tokens"][:-1], -1]}

    monkeypatch.setattr(plain.Plain, "generate", other)
    with pytest.raises(Disagreement, match="new tokens at 64 positions"):
        generating.run_generation(near)
