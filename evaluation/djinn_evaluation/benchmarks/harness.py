"""The needs of every benchmark: sides in turn, figures with their bars, results as JSON, processes of other tools, an
engine, and an environment of its own. A verdict is computed from a figure and its bar; unmeasured values are None."""

from __future__ import annotations

import json
import os
import statistics
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, is_dataclass
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from time import perf_counter
from typing import Any, Final, Literal

import djinn_jupyter as dj
from djinn_evaluation import CHECKOUT, EVALUATION
from djinn_evaluation.baselines.asking import Baseline
from djinn_evaluation.intervals import MedianInterval, ratios
from djinn_evaluation.machine import FOLDERS, Machine, computed_on, git, seconds_computed
from djinn_evaluation.serving import PLACES, private_jupyter
from djinn_jupyter.api.engine import RemoteEngine
from djinn_jupyter.machine import DEVICE_VARIABLE

MODULE_OF: Final = {
    name: module
    for module, names in {
        "generating": "generation batches collection adapters features",
        "stops": "breakpoints resume stop fork rules",
        "asking": "round_trip beside",
        "starting": "load_ext cold_start",
        "moving": "swap prefetch streaming",
        "patching": "sweep patching attribution",
        "crowds": "replay crowds corners",
        "cards": "paint first_card",
        "journal": "journal",
        "people": "people shared_passes logs",
        "tools": "agreement analysis tracing",
        "limits": "limits",
        "house": "house",
        "installing": "install",
        "notebooks": "notebooks",
        "ways": "ways",
    }.items()
    for name in names.split()
}
"""The module of each benchmark, which is a function `run_NAME` there."""
DECIDING: Final = 6  # readings: of fewer the interval of a median has it with less than 0.95


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """Median and quartiles of `count` readings, or in their place the interval of the median."""

    median: float
    low: float
    high: float
    count: int

    @classmethod
    def of(cls, readings: Iterable[float]) -> Spread | None:
        """Return the spread; None when there are no readings."""
        values = sorted(readings)
        if not values:
            return None
        low, _, high = statistics.quantiles(values, n=4, method="inclusive") if len(values) > 1 else values * 3
        return cls(median=statistics.median(values), low=low, high=high, count=len(values))

    @classmethod
    def of_median(cls, readings: Sequence[float]) -> Spread:
        """Return the median and, from DECIDING readings on, its interval of probability 0.95."""
        found = MedianInterval.of(readings)
        return cls(median=found.median, low=found.low, high=found.high, count=found.count)


def benchmark(name: str) -> Callable[[Setting], Result]:
    module = import_module(f"djinn_evaluation.benchmarks.{MODULE_OF[name]}")
    found: Callable[[Setting], Result] = getattr(module, f"run_{name}")
    return found


def in_milliseconds(seconds: Iterable[float]) -> Spread | None:
    return Spread.of(1000 * each for each in seconds)


Readings = dict[str, list[float]]
"""Of every side, one a round."""


def take_turns(
    sides: Mapping[str, Callable[[], float]],
    *,
    rounds: int,
    warm_up: int = 1,
    after: Callable[[Readings], None] = lambda readings: None,
) -> Readings:
    """Return readings of every side, one a round: A B, B A, A B, ... so that a drift of the machine affects all alike.

    A side times itself and returns its reading. `warm_up` rounds come first and are not kept. `after` gets the readings
    so far after each kept round except the last.
    """
    readings: Readings = {name: [] for name in sides}
    for number in range(warm_up + rounds):
        for name in list(sides) if number % 2 == 0 else reversed(list(sides)):
            reading = sides[name]()
            if number >= warm_up:
                readings[name].append(reading)
        if warm_up <= number < warm_up + rounds - 1:
            after(readings)
    return readings


def differences(more: Sequence[float], less: Sequence[float], scale: float = 1.0) -> list[float]:
    """Return (more - less) x scale, round by round."""
    return [(a - b) * scale for a, b in zip(more, less, strict=True)]


HERE = EVALUATION / "results" / "benchmarks"


def usual() -> Path:
    """Return the folder of results: that of a checkout, or of an installed package one below the current directory."""
    return HERE if (EVALUATION / "pyproject.toml").is_file() else Path("djinn-results", "benchmarks").absolute()


class Disagreement(Exception):
    """Two sides that should have computed the same did not: their times mean nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """`by_interval` where a spread is the interval of its median, which then has to be whole on one side of the bar."""

    sense: Literal["at least", "at most"]
    value: float
    by_interval: bool = False

    def met_by(self, figure: float) -> bool:
        return figure >= self.value if self.sense == "at least" else figure <= self.value

    def verdict(self, spread: Spread) -> bool | None:
        """Return whether the median meets the bar; None where its interval does not decide that."""
        if not self.by_interval:
            return self.met_by(spread.median)
        ends = {self.met_by(spread.low), self.met_by(spread.high)}
        return ends.pop() if len(ends) == 1 and spread.count >= DECIDING else None


def at_least(value: float) -> Bar:
    return Bar(sense="at least", value=value)


def at_most(value: float) -> Bar:
    return Bar(sense="at most", value=value)


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One number with its bar; `sides` are the readings behind it, `not_run` says why there is no value."""

    name: str
    unit: str
    value: Spread | None
    bar: Bar | None = None
    sides: Mapping[str, Spread | None] = field(default_factory=dict)
    sides_unit: str | None = None
    not_run: str | None = None

    @property
    def met(self) -> bool | None:
        """True where the median meets the bar; None where there is no bar or no value, or the bar is not decided."""
        return None if self.bar is None or self.value is None else self.bar.verdict(self.value)

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "met": self.met}

    def __str__(self) -> str:
        if self.value is None:
            return f"{self.name}: not run ({self.not_run})" if self.not_run else f"{self.name}: not measured"
        low, high = _spelled(self.value.low), _spelled(self.value.high)
        spread = f"{_spelled(self.value.median)} {self.unit} ({low} to {high})"
        if self.bar is None:
            return f"{self.name}: {spread}"
        verdict = {True: "met", False: "MISSED", None: "not decided"}[self.met]
        return f"{self.name}: {spread}, bar {self.bar.sense} {self.bar.value:g}: {verdict}"


def _spelled(number: float) -> str:
    return f"{number:.3g}" if abs(number) < 1000 else f"{number:.0f}"


def compared(
    name: str,
    over: str,
    under: str,
    readings: Readings,
    *,
    unit: str,
    each: Callable[[float], float] = float,
    bar: Bar | None = None,
    not_run: str | None = None,
) -> Figure:
    """Return side `over` divided by side `under`, round by round; `each` converts a reading into `unit`."""
    return Figure(
        name=name,
        unit="x",
        value=Spread.of(ratios(readings[over], readings[under])),
        bar=bar,
        sides={side: Spread.of(map(each, values)) for side, values in readings.items()},
        sides_unit=unit,
        not_run=not_run,
    )


def milliseconds(seconds: float) -> float:
    return 1000 * seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """`checks` were made while measuring: each names the comparison and counts its agreements."""

    benchmark: str
    settings: Mapping[str, Any]
    figures: tuple[Figure, ...]
    checks: Mapping[str, int] = field(default_factory=dict)


class Checks:
    """Counts agreements and refuses the first disagreement."""

    def __init__(self) -> None:
        self.counts: dict[str, int] = {}

    def same(self, what: str, ours: object, theirs: object) -> None:
        if ours != theirs:
            raise Disagreement(f"{what}: {_short(ours)} against {_short(theirs)}.")
        self.add({what: 1})

    def add(self, counts: Mapping[str, int]) -> None:
        """Count agreements that were found elsewhere, as in an earlier turn."""
        for what, count in counts.items():
            self.counts[what] = self.counts.get(what, 0) + count


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 200 else f"{text[:200]}..."


def write(result: Result, machine: Machine, folder: Path, *, partial: str | None = None) -> Path:
    """Write NAME.json, whole or not at all, and return its path; `partial` says how far the benchmark came."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{result.benchmark}.json"
    written: dict[str, Any] = {
        "benchmark": result.benchmark,
        "machine": asdict(machine),
        "settings": {name: _plain(value) for name, value in result.settings.items()},
        "checks": dict(result.checks),
        "figures": [figure.to_json() for figure in result.figures],
    }
    if partial is not None:
        written["partial"] = partial
    return put(path, json.dumps(written, indent=1, allow_nan=False) + "\n")


def put(path: Path, text: str) -> Path:
    """Write a file, whole or not at all; return its path."""
    beside = path.with_suffix(".writing")
    beside.write_text(text)
    return beside.replace(path)


def whole(path: Path) -> bool:
    """Return whether the file is there and has all of its benchmark's figures."""
    return path.exists() and "partial" not in json.loads(path.read_text())


def _plain(value: Any) -> Any:
    return asdict(value) if is_dataclass(value) and not isinstance(value, type) else value


class Worker(Baseline):
    """A module of `djinn_evaluation.benchmarks.workers`, perhaps in another tool's environment."""

    def __init__(self, module: str, python: Path | str = sys.executable) -> None:
        super().__init__(f"djinn_evaluation.benchmarks.workers.{module}", python=python, folders=(EVALUATION, CHECKOUT))

    @property
    def pid(self) -> int:
        return self.process.pid

    def seconds(self, verb: str, **arguments: Any) -> float:
        return float(self.ask(verb, **arguments)["seconds"])


@contextmanager
def worker(module: str, python: Path | str = sys.executable) -> Iterator[Worker]:
    made = Worker(module, python)
    try:
        yield made
    finally:
        made.close()


TURN_SECONDS = 480.0
OWN_FOLDERS = (*PLACES, "JUPYTER_CONFIG_DIR", "IPYTHONDIR", "HF_HOME")


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """A GPT-2 of this size, with random weights, saved without a tokenizer."""

    layers: int = 12
    width: int = 768
    heads: int = 12
    vocabulary: int = 50257
    positions: int = 1024
    seed: int = 0


GPT2 = Shape()
TINY = Shape(layers=8, width=64, heads=4, vocabulary=512, positions=1024)

SoFar = Callable[[Iterable[Figure], str], None]
"""Keeps the figures found so far, with words on how far the benchmark is: what a run that is cut leaves."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """`quick` runs everything on a tiny model in few rounds: to see that a benchmark works, never for a figure. A
    benchmark that continues in another run keeps its state in `results`. `factor` is the size of the models that only
    a GPU holds, of their usual one. `seconds` are those of this run; a benchmark that may need more continues in
    another. `at` is the commit that is counted, where it is not this checkout."""

    quick: bool
    threads: int
    home: Path
    results: Path | None = None
    factor: float = 1.0
    seconds: float = TURN_SECONDS
    at: str | None = None
    so_far: SoFar = lambda figures, how_far: None

    def shape(self, usual: Shape = GPT2) -> Shape:
        return TINY if self.quick else usual

    def rounds(self, usual: int) -> int:
        return min(usual, 3) if self.quick else usual

    def after_rounds(
        self, figures: Callable[[Readings], Iterable[Figure]], rounds: int, before: Sequence[Figure] = ()
    ) -> Callable[[Readings], None]:
        """Return what keeps, after each round of `take_turns`, the figures of its readings and those found before."""

        def keep(readings: Readings) -> None:
            count = len(next(iter(readings.values())))
            self.so_far([*before, *figures(readings)], f"{count} of {rounds} rounds of {len(readings)} sides")

        return keep

    def model(self, shape: Shape) -> str:
        """Return the folder of the model of this shape; a worker that ends creates it at first use."""
        with worker("plain") as plain:
            return self.saved(plain, shape)

    def saved(self, plain: Worker, shape: Shape) -> str:
        """Return the folder of the model of this shape; the worker `plain` creates it at first use, and loads it."""
        folder = self.home / "-".join(map(str, asdict(shape).values()))
        plain.ask("load", folder=str(folder), shape=asdict(shape), threads=self.threads)
        return str(folder)


@contextmanager
def setting(*, quick: bool, threads: int, device: str, **others: Any) -> Iterator[Setting]:
    """Set what engines, kernels and workers inherit, away from the user's engines; `others` are the setting's."""
    variables = {
        DEVICE_VARIABLE: device,
        "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "OMP_NUM_THREADS": str(threads),
    }
    os.environ.pop("JPY_SESSION_NAME", None)
    with private_jupyter(OWN_FOLDERS, **variables) as home:
        yield Setting(quick=quick, threads=threads, home=home, **others)


# A GPU's work is in none of them: there the wall clock is read.
UNSAID = "this system does not say how long a process has computed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Clock:
    """Reads seconds of work, and says which in `unit`."""

    read: Callable[[], float]
    unit: str

    def of(self, work: Callable[[], object]) -> float:
        """Return the seconds that `work` takes."""
        begun = self.read()
        work()
        return self.read() - begun


def clock_of(*pids: int) -> Clock:
    """Return the clock of these processes: CPU seconds, a GPU's wall clock; RuntimeError where neither is told."""
    if computed_on().startswith("cuda"):
        return Clock(read=perf_counter, unit="s")
    if seconds_computed(os.getpid()) is None:
        raise RuntimeError(UNSAID)
    return Clock(read=lambda: seconds_computed(*pids) or 0.0, unit="CPU s")


class Computing:
    """CPU seconds of a process between `begin` and `end`; `readings` is empty where the system does not say them."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._before = seconds_computed(pid)
        self.readings: list[float] = []

    def begin(self) -> None:
        self._before = seconds_computed(self._pid)

    def end(self) -> None:
        now = seconds_computed(self._pid)
        if now is not None and self._before is not None:
            self.readings.append(now - self._before)


@contextmanager
def engine_of(folder: str, setting: Setting, **options: Any) -> Iterator[RemoteEngine]:
    engine = dj.load(folder, threads=setting.threads, **options)
    try:
        yield engine
    finally:
        engine.stop(force=True)


@contextmanager
def both_sides(shape: Shape, setting: Setting, module: str = "plain") -> Iterator[tuple[Worker, RemoteEngine]]:
    """Yield a worker and an engine, both with the model of this shape."""
    with worker(module) as plain, engine_of(setting.saved(plain, shape), setting) as engine:
        yield plain, engine


def pid_of(engine: RemoteEngine) -> int:
    assert engine.entry is not None
    return engine.entry.pid


class Stopwatch:
    """Notes the time at which each new token reached this process."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def __call__(self, token: object) -> None:
        self.times.append(perf_counter())

    @property
    def decoding(self) -> float:
        """Seconds from the first new token to the last."""
        return self.times[-1] - self.times[0]

    @property
    def usual(self) -> float:
        """Median seconds from one new token to the next; a machine that is busy now and then does not change it."""
        return statistics.median(after - before for before, after in pairwise(self.times))


RESULTS: Final = EVALUATION / "results"
PRODUCT: Final = FOLDERS[0]


def aged(results: Path = RESULTS) -> Iterator[str]:
    """Yield a sentence for each result that a later commit of its modules may have made wrong, the oldest first."""
    found = []
    for path in sorted((*results.rglob("benchmarks/**/*.json"), *results.glob("*/claims.json"))):
        fields: dict[str, Any] = json.loads(path.read_text())
        commit = (fields.get("code") or fields.get("machine", {}).get("versions") or {}).get("commit")
        moment = fields.get("timestamp") or fields.get("machine", {}).get("begun")
        if commit or moment:
            known = commit is not None and git("merge-base", commit, "HEAD") == commit
            count = _later(path.stem, commit if known else None, moment)
            made = f"at {commit[:8]}" if known else f"on {moment[:10]}, by a commit {_unknown(commit)}"
            found.append((count, f"{path.relative_to(results)}: made {made}; its modules have {count} later commits."))
    return (sentence for count, sentence in sorted(found, reverse=True) if count)


def _unknown(commit: str | None) -> str:
    return "that it does not name" if commit is None else f"({commit[:8]}) that this history does not have"


def _later(name: str, commit: str | None, moment: str | None) -> int:
    """Return how many commits after a result touched the product or the modules it comes from."""
    own = f"evaluation/djinn_evaluation/benchmarks/{MODULE_OF.get(name, name)}.py"
    modules = (PRODUCT, FOLDERS[1] if name == "claims" else own)
    after = [f"{commit}..HEAD"] if commit else [f"--since={moment}", "HEAD"]
    return int(git("rev-list", "--count", *after, "--", *modules) or 0)
