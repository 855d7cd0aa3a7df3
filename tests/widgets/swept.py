"""A sweep's reply as an engine of eight layers would give it."""

from __future__ import annotations

import numpy as np

from djinn_jupyter.wire import replies
from djinn_jupyter.wire.arrays import Array
from djinn_jupyter.wire.nouns import Mode
from djinn_jupyter.wire.sweeps import Axis
from tests.widgets.samples import HEADS, LAYERS, PROMPT


def swept(
    *,
    mode: Mode = "fast",
    seed: int = 0,
    metric: str = "logit(' Rome') - logit(' Paris')",
    over: tuple[Axis, ...] = ("layer", "position"),
    notes: tuple[str, ...] = (),
) -> replies.Swept:
    """A sweep of a patch: its values grow from the first cell to the last."""
    places = {"layer": range(LAYERS), "position": range(len(PROMPT)), "head": range(HEADS)}
    shape = tuple(len(places[axis]) for axis in over)
    made = np.arange(np.prod(shape), dtype=np.float64).reshape(shape) / 4 - 3
    return replies.Swept(
        site="resid_post",
        over=over,
        layers=tuple(places["layer"]) if "layer" in over else (),
        positions=tuple(places["position"]),
        heads=tuple(places["head"]) if "head" in over else (),
        texts=PROMPT,
        metric=metric,
        edit="patch from the clean line",
        values=Array(dtype="float64", shape=shape, data=made.tobytes()),
        corrupted=-3.0,
        clean=6.75,
        mode=mode,
        seed=seed,
        computed=made.size - 12,
        rechecked=(3, 7, 11, 30) if mode == "fast" else (),
        largest_difference=2.1e-6 if mode == "fast" else None,
        tolerance=1e-3,
        notes=notes,
    )
