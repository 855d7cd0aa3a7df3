"""The steps of `make gpu`, in order, and their results in files, so that an interrupted step continues."""

from __future__ import annotations

import hashlib
import json
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Final

from djinn_evaluation import CHECKOUT
from djinn_evaluation.benchmarks.harness import MODULE_OF, TURN_SECONDS, Result, Setting
from djinn_evaluation.machine import versions

SECONDS: Final = TURN_SECONDS  # of a turn, with its start
UNFINISHED: Final = 3  # the exit status of a step that continues in another turn


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """`module` has a function `run_NAME(setting)` that returns a Result, or raises Unfinished where it continues in
    another turn.

    `minutes` are expected of all of it at its usual size, on an H100 (evaluation/README.md says from what). `turn` are
    the most seconds of one turn of a step that continues; None for a step that has all it needs in one.
    """

    name: str
    learns: str
    module: str
    minutes: float
    turn: int | None = None

    @property
    def seconds(self) -> int:
        """Return the seconds that a turn is expected to take."""
        whole = round(60 * self.minutes)
        return whole if self.turn is None else min(self.turn, whole)

    def run(self, setting: Setting) -> Result:
        found: Result = getattr(import_module(self.module), f"run_{self.name.replace('-', '_')}")(setting)
        return found


def _benchmark(name: str, learns: str, minutes: float) -> Step:
    """Return the step of a benchmark that `python -m djinn_evaluation.benchmarks` runs as well."""
    return Step(name=name, learns=learns, module=f"djinn_evaluation.benchmarks.{MODULE_OF[name]}", minutes=minutes)


def _of_a_gpu(name: str, learns: str, minutes: float, turn: int | None = None, *, module: str | None = None) -> Step:
    """Return a step that is in this folder, because its usual size needs a GPU."""
    module = f"djinn_evaluation.benchmarks.gpu.{module or name.replace('-', '_')}"
    return Step(name=name, learns=learns, module=module, minutes=minutes, turn=turn)


STEPS: Final = (
    _of_a_gpu("link", "doctor, driver and clocks; copies, pinned and not", 0.5, module="ring"),
    _of_a_gpu("attention", "which kernels of attention give the same bits each time", 1),
    _of_a_gpu(
        "exactness",
        "bits of every family in each dtype and attention: stop, fork, edit, resume, swap, checkpoint, journal",
        25,
        turn=300,
    ),
    _of_a_gpu(
        "races",
        "10,000 random interleavings with poisoned pages; compute-sanitizer's memcheck and racecheck",
        12,
        turn=300,
    ),
    _of_a_gpu("pressure", "50 sessions of 2,048 tokens on 13B-shaped weights under an imposed 72 GiB", 4),
    _of_a_gpu("pressure-again", "the same a second time, as its claims need", 2.5, module="pressure"),
    _of_a_gpu("mended", "the tests that failed on a card once and were mended", 5, turn=90),
    _of_a_gpu(
        "moves", "one of those sessions leaves the device and comes back, against plain copies", 1, module="start_up"
    ),
    _benchmark("swap", "sessions leave for the host and the disk and come back, against plain copies", 2),
    _benchmark("prefetch", "the next token of a session that had left, told and untold", 1),
    _of_a_gpu("ring", "13B-shaped weights in 12 GiB: copies, windows of the link, against accelerate", 4),
    _of_a_gpu("large-ring", "70B-shaped weights in 48 GiB, likewise", 7, module="ring"),
    _of_a_gpu("quantized", "which kinds of quantized weights pass the self-test; those without a library are named", 1),
    _benchmark("streaming", "small weights through the ring, against copying, computing and accelerate", 3),
    _benchmark("generation", "tokens/s against plain generate", 2),
    _of_a_gpu(
        "graphs",
        "decode of 7B- and 13B-shaped weights by CUDA graphs, against generate, the memory's speed and vLLM",
        8,
        turn=240,
    ),
    _benchmark("breakpoints", "an armed breakpoint that does not hit", 3),
    _benchmark("resume", "a resume against its layers alone", 2),
    _benchmark("stop", "a stop against its layers alone", 1),
    _benchmark("round_trip", "a request's round trip, idle, in a decode and in a prefill", 2),
    _benchmark("fork", "a fork of 1,000 positions", 1),
    _benchmark("sweep", "activation patching against plain Hugging Face, TransformerLens and nnsight", 5),
    _benchmark("collection", "activations of many prompts to files, against plain batches", 2),
    _benchmark("batches", "32 continuations at once, against plain batched generate", 2),
    _of_a_gpu(
        "evaluation",
        "`djinn experiment all --profile gpu`, each experiment with its own report",
        30,
        turn=SECONDS,
        module="pressure",
    ),
    _of_a_gpu("start-up", "from the load of 26 GB to the first token, against reading the files", 5),
)


def findings_of(step: str, folder: Path) -> Path:
    """Return the file in which a step of several turns keeps its findings, beside its result."""
    return folder / f"{step}.jsonl"


class Unfinished(Exception):
    """Raised when a step's time is over and its results are kept; the message has its progress."""


def step_of(name: str) -> Step:
    """Return the step of that name. Raises KeyError for a name that no step has."""
    return {step.name: step for step in STEPS}[name]


# What a quarter of an hour is for, in the order of worth. The large ones share one saved model.
QUARTER: Final = tuple(map(step_of, ("link", "pressure", "pressure-again", "mended", "moves", "graphs")))
QUARTER_MINUTES: Final = 5.5  # of one run; two and the start of a machine are a quarter of an hour
QUARTER_RUNS: Final = 2
GRACE_SECONDS: Final = 30  # at the end of a run, for a turn whose time is over to stop its engines


def planned() -> tuple[list[list[Step]], list[Step]]:
    """Return each run's steps of the quarter by expected seconds, and those left; shorter later ones fill a run."""
    runs, left = [], list(QUARTER)
    for _ in range(QUARTER_RUNS):
        room, chosen = 60 * QUARTER_MINUTES - GRACE_SECONDS, list[Step]()
        for step in left:
            if step.seconds <= room:
                chosen.append(step)
                room -= step.seconds
        runs.append(chosen)
        left = [step for step in left if step not in chosen]
    return runs, left


ENGINE: Final = ("djinn_jupyter/engine",)
EXPERIMENTS: Final = ("djinn_jupyter", "evaluation/djinn_evaluation")
TESTS: Final = ("djinn_jupyter", "tests")


class Kept:
    """Findings by their names. Lines that depend on other sources, versions or sizes than those of now do not count."""

    def __init__(self, path: Path, size: float, sources: tuple[str, ...] = ENGINE) -> None:
        self._path, self._under = path, f"{depends_on(sources)} {size:g}"
        entries = _whole(path.read_bytes()) if path.exists() else []
        self.found: dict[str, Any] = {one["name"]: one["value"] for one in entries if one["under"] == self._under}

    @classmethod
    def of(cls, step: str, setting: Setting, sources: tuple[str, ...] = ENGINE) -> Kept:
        """Return the findings of a step, beside its result. `sources` are the folders that they depend on."""
        return cls(findings_of(step, setting.results or setting.home), setting.factor, sources)

    def add(self, name: str, value: Any) -> None:
        self.found[name] = value
        with self._path.open("a") as file:  # a line of its own, also after one that a kill has torn
            file.write("\n" + json.dumps({"under": self._under, "name": name, "value": value}) + "\n")


def _whole(lines: bytes) -> list[dict[str, Any]]:
    """Return the entries of the lines that were written to their end."""
    found = []
    for line in lines.splitlines():
        with suppress(ValueError):
            found.append(json.loads(line))
    return found


def depends_on(sources: tuple[str, ...]) -> str:
    """Return a digest of these sources and of the libraries' versions: after a fix, all is decided again."""
    found = hashlib.sha256(str(versions(("torch", "transformers"))).encode())
    for path in sorted(path for folder in sources for path in (CHECKOUT / folder).rglob("*.py")):
        found.update(path.read_bytes())
    return found.hexdigest()[:16]
