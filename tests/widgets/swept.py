"""A sweep's reply as an engine of eight layers would give it."""

from __future__ import annotations

import msgspec
import numpy as np

from djinn_jupyter.methods.sweep.request import Axis, Measured, Swept
from djinn_jupyter.wire.arrays import Array
from djinn_jupyter.wire.nouns import Mode
from tests.widgets.samples import HEADS, LAYERS, PROMPT


def swept(
    *,
    mode: Mode = "fast",
    seed: int = 0,
    metric: str | tuple[str, ...] = "logit(' Rome') - logit(' Paris')",
    over: tuple[Axis, ...] = ("layer", "position"),
    notes: tuple[str, ...] = (),
    in_pairs: bool = False,
) -> Swept:
    """A sweep of a patch: its values grow from the first cell to the last."""
    places = {"layer": range(LAYERS), "position": range(len(PROMPT)), "head": range(HEADS), "neuron": range(6)}
    over *= 2 if in_pairs else 1
    shape = tuple(len(places[axis]) for axis in over)
    made = np.arange(np.prod(shape), dtype=np.float64).reshape(shape) / 4 - 3
    return Swept(
        site="resid_post",
        over=over,
        places=tuple(tuple(places[axis]) for axis in over),
        texts=PROMPT,
        edit="patch from the clean line",
        measured=tuple(
            measured(one, made + number, exact=mode == "exact")
            for number, one in enumerate((metric,) if isinstance(metric, str) else metric)
        ),
        mode=mode,
        seed=seed,
        computed=made.size - 12,
        rechecked=(3, 7, 11, 30) if mode == "fast" else (),
        notes=notes,
        in_pairs=in_pairs,
    )


def measured(metric: str, values: np.ndarray, *, corrupted: float = -3.0, exact: bool = False) -> Measured:
    return Measured(
        metric=metric,
        values=Array(dtype="float64", shape=values.shape, data=values.tobytes()),
        corrupted=corrupted,
        clean=6.75,
        largest_difference=None if exact else 2.1e-6,
        tolerance=1e-3,
    )


def with_values(reply: Swept, values: np.ndarray, **changes: float) -> Swept:
    """The reply with these values of its metric."""
    one = msgspec.structs.replace(measured(reply.measured[0].metric, values), **changes)
    return msgspec.structs.replace(reply, measured=(one,))
