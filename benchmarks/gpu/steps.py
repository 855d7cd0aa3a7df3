"""The steps of `make gpu` in order, and the planned steps that are not built."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

SECONDS: Final = 480  # of a step, with its start; a longer step continues in another turn


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """`module` has a `run(setting)` that returns a Result, or raises Unfinished where it needs another turn."""

    name: str
    learns: str
    module: str


def _benchmark(name: str, learns: str) -> Step:
    """Return the step of a benchmark that `python -m benchmarks` runs as well."""
    return Step(name=name, learns=learns, module=f"benchmarks.{name}")


def _of_a_gpu(name: str, learns: str) -> Step:
    """Return a step that is in this folder, because its usual size needs a GPU."""
    return Step(name=name, learns=learns, module=f"benchmarks.gpu.{name.replace('-', '_')}")


STEPS: Final = (
    _of_a_gpu("link", "doctor, driver and clocks; copies, pinned and not"),
    _of_a_gpu("attention", "which kernels of attention give the same bits each time"),
    _of_a_gpu(
        "exactness",
        "bits of every family in each dtype and attention: stop, fork, edit, resume, swap, checkpoint, journal",
    ),
    _of_a_gpu("races", "10,000 random interleavings with poisoned pages; compute-sanitizer's memcheck and racecheck"),
    _of_a_gpu("sessions", "50 sessions of 2,048 tokens on 13B-shaped weights under an imposed 80 GiB"),
    _of_a_gpu("moves", "one of those sessions leaves the device and comes back, against plain copies"),
    _benchmark("swap", "sessions leave for the host and the disk and come back, against plain copies"),
    _benchmark("prefetch", "the next token of a session that had left, told and untold"),
    _of_a_gpu("ring", "13B-shaped weights in 12 GiB: copies, windows of the link, against accelerate"),
    _of_a_gpu("large-ring", "70B-shaped weights in 48 GiB, likewise"),
    _benchmark("streaming", "small weights through the ring, against copying, computing and accelerate"),
    _benchmark("generation", "tokens/s against plain generate"),
    _of_a_gpu("graphs", "decode of 7B- and 13B-shaped weights by CUDA graphs, against generate and the memory's speed"),
    _benchmark("breakpoints", "an armed breakpoint that does not hit"),
    _benchmark("resume", "a resume against its layers alone"),
    _benchmark("stop", "a stop against its layers alone"),
    _benchmark("round_trip", "a request's round trip, idle, in a decode and in a prefill"),
    _benchmark("fork", "a fork of 1,000 positions"),
    _benchmark("sweep", "activation patching against plain Hugging Face, TransformerLens and nnsight"),
    _of_a_gpu("evaluation", "`djinn experiment all --profile gpu`, each experiment with its own report"),
    _of_a_gpu("start-up", "from the load of 26 GB to the first token, against reading the files"),
)

# The other steps that issue 12 asks for. The report names each.
NOT_BUILT: Final = {
    "vllm": "tokens/s of vLLM beside those by graphs: it is not installed where the steps run",
}


class Unfinished(Exception):
    """The step's time is over and its results are kept; the message says how far it came."""


def step_of(name: str) -> Step:
    """Return the step of that name. Raises KeyError for a name that no step has."""
    return {step.name: step for step in STEPS}[name]
