"""Every copy of a streamed layer while tokens are generated: GB/s, and the share of copies above 20 GB/s.

Runs on a GPU with random weights of 13 billion parameters in 12 GiB; without a GPU it is not run.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import replace
from time import monotonic
from typing import Any

import djinn_jupyter as dj
from benchmarks.measuring import Spread
from benchmarks.results import Figure
from djinn_jupyter.experiments.configuration.architecture import architecture
from djinn_jupyter.experiments.devices import computed_on
from djinn_jupyter.experiments.serving import random_tokens

FAST = 20e9  # bytes a second
THIRTEEN = "Llama-2-13b-hf"


def on_gpu() -> list[Figure]:
    """Return the figures of the large model, where the device is a GPU; else two figures that say why they have no
    value."""
    what = "13B in 12 GiB on a GPU"
    device = computed_on()
    if device.startswith("cuda"):
        return measured(THIRTEEN, what, device=device, budget="12GiB", seconds=10)
    speed, share = _figures(what, None)
    return [replace(figure, not_run="no GPU is computed on here") for figure in (speed, share)]


def measured(
    model: str, what: str, *, device: str, budget: str, seconds: float, sizes: Mapping[str, Any] | None = None
) -> list[Figure]:
    """Generate for at least `seconds` with random weights of a shipped architecture, its `sizes` changed; loading and
    self-test are not counted."""
    with ExitStack() as stack:
        folder = stack.enter_context(architecture(model, sizes or {}))
        assert folder is not None
        engine = dj.load(folder, device=device, device_memory=budget, random_weights=True)
        stack.callback(engine.stop, force=True, forget=True)
        session = engine.session("layer copies", fresh=True)
        prompt = random_tokens(4, engine.description.vocab_size)
        session.run(prompt, max_new_tokens=1, ignore_eos=True)
        since = max((copy.number for copy in engine.copies()), default=0)
        begun, speeds = monotonic(), []
        while monotonic() - begun < seconds:
            session.run(prompt, max_new_tokens=8, ignore_eos=True)
            copies = engine.copies(since)
            speeds += [copy.bytes_moved / copy.seconds for copy in copies]
            since = copies[-1].number if copies else since
    return _figures(what, speeds)


def _figures(what: str, speeds: list[float] | None) -> list[Figure]:
    """Return the figures of copies; `speeds` are in bytes a second."""
    fast = [sum(speed > FAST for speed in speeds) / len(speeds)] if speeds else []
    return [
        Figure(name=f"a layer copy, {what}", unit="GB/s", value=Spread.of(speed / 1e9 for speed in speeds or ())),
        Figure(name=f"layer copies above {FAST / 1e9:.0f} GB/s, of all, {what}", unit="x", value=Spread.of(fast)),
    ]
