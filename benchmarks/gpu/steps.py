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


STEPS: Final = (
    Step(name="link", learns="doctor, driver and clocks; copies, pinned and not", module="benchmarks.gpu.link"),
    Step(
        name="exactness",
        learns="bits of every family in each dtype and attention: stop, fork, edit, resume, swap, checkpoint",
        module="benchmarks.gpu.exactness",
    ),
    _benchmark("swap", "sessions leave for the host and the disk and come back, against plain copies"),
    _benchmark("prefetch", "the next token of a session that had left, told and untold"),
    _benchmark("streaming", "weights through the ring, against copying, computing and accelerate"),
    _benchmark("generation", "tokens/s against plain generate"),
    _benchmark("breakpoints", "an armed breakpoint that does not hit"),
    _benchmark("resume", "a resume against its layers alone"),
    _benchmark("stop", "a stop against its layers alone"),
    _benchmark("round_trip", "a request's round trip, idle, in a decode and in a prefill"),
    _benchmark("fork", "a fork of 1,000 positions"),
    _benchmark("sweep", "activation patching against plain Hugging Face, TransformerLens and nnsight"),
)

# The other steps that issue 12 asks for. The report names each.
NOT_BUILT: Final = {
    "races": "the copy and ring tests under compute-sanitizer; 10^4 random interleavings with poisoned pages",
    "many sessions": "50 sessions of 2,048 tokens on 13B-shaped weights under an imposed 80 GiB",
    "large ring": "70B-shaped weights in 48 GiB (13B in 12 GiB is a part of streaming)",
    "evaluation": "`djinn experiment` with a profile for GPUs",
    "start-up": "from %djinn_load of 26 GB to the first token, against reading the files",
    "graphs": "decode by CUDA graphs between armed sites",
}


class Unfinished(Exception):
    """The step's time is over and its results are kept; the message says how far it came."""


def step_of(name: str) -> Step:
    """Return the step of that name. Raises KeyError for a name that no step has."""
    return {step.name: step for step in STEPS}[name]
