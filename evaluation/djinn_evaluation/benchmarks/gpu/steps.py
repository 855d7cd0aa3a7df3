"""The steps of `make gpu`, in order."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from djinn_evaluation.benchmarks.setting import TURN_SECONDS

SECONDS: Final = TURN_SECONDS  # of a turn, with its start


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """`module` has a `run(setting)` that returns a Result, or raises Unfinished where it continues in another turn.

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


def _benchmark(name: str, learns: str, minutes: float) -> Step:
    """Return the step of a benchmark that `python -m djinn_evaluation.benchmarks` runs as well."""
    return Step(name=name, learns=learns, module=f"djinn_evaluation.benchmarks.{name}", minutes=minutes)


def _of_a_gpu(name: str, learns: str, minutes: float, turn: int | None = None) -> Step:
    """Return a step that is in this folder, because its usual size needs a GPU."""
    module = f"djinn_evaluation.benchmarks.gpu.{name.replace('-', '_')}"
    return Step(name=name, learns=learns, module=module, minutes=minutes, turn=turn)


STEPS: Final = (
    _of_a_gpu("link", "doctor, driver and clocks; copies, pinned and not", 0.5),
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
    _of_a_gpu("pressure-again", "the same a second time, as its claims need", 2.5),
    _of_a_gpu("mended", "the tests that failed on a card once and were mended", 5, turn=90),
    _of_a_gpu("moves", "one of those sessions leaves the device and comes back, against plain copies", 1),
    _benchmark("swap", "sessions leave for the host and the disk and come back, against plain copies", 2),
    _benchmark("prefetch", "the next token of a session that had left, told and untold", 1),
    _of_a_gpu("ring", "13B-shaped weights in 12 GiB: copies, windows of the link, against accelerate", 4),
    _of_a_gpu("large-ring", "70B-shaped weights in 48 GiB, likewise", 7),
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
        "evaluation", "`djinn experiment all --profile gpu`, each experiment with its own report", 30, turn=SECONDS
    ),
    _of_a_gpu("start-up", "from the load of 26 GB to the first token, against reading the files", 5),
)


def findings_of(step: str, folder: Path) -> Path:
    """Return the file in which a step of several turns keeps its findings, beside its result."""
    return folder / f"{step}.jsonl"


class Unfinished(Exception):
    """The step's time is over and its results are kept; the message says how far it came."""


def step_of(name: str) -> Step:
    """Return the step of that name. Raises KeyError for a name that no step has."""
    return {step.name: step for step in STEPS}[name]


# What a quarter of an hour is for, in the order of worth. The large ones share one saved model.
QUARTER: Final = tuple(map(step_of, ("link", "pressure", "pressure-again", "mended", "moves", "graphs")))
QUARTER_MINUTES: Final = 5.5  # of one run; two and the start of a machine are a quarter of an hour
QUARTER_RUNS: Final = 2
GRACE_SECONDS: Final = 30  # at the end of a run, for a turn whose time is over to stop its engines


def planned() -> tuple[list[list[Step]], list[Step]]:
    """Return the steps of each run of the quarter, as the expected seconds have it, and those left for another run: one
    that does not go into the rest of a run is put off, and a shorter one behind it is run."""
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
