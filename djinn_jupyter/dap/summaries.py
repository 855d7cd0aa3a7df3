"""Numbers of an activation in one line: shape, dtype, mean, extremes, norm. Pure functions of numpy arrays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from djinn_jupyter.wire.figures import Figures

AnyArray = NDArray[Any]


def wide(values: AnyArray) -> AnyArray:
    """Convert to a dtype that numpy computes with: bfloat16 and float16 to float32, in which all their values are
    exact."""
    return values.astype(np.float32) if values.dtype.itemsize < 4 or values.dtype.kind != "f" else values


def number(value: float) -> str:
    return f"{float(value):.6g}"


def shape(values: AnyArray) -> str:
    return sizes(values.shape)


def sizes(of: Sequence[int]) -> str:
    return "[" + ", ".join(map(str, of)) + "]"


def in_order(figures: Figures | Sequence[float]) -> dict[str, float]:
    """Return by name the figures of a value that the engine computed."""
    found = (
        [figures.mean, figures.std, figures.lowest, figures.highest, figures.norm]
        if isinstance(figures, Figures)
        else figures
    )
    return dict(zip(("mean", "std", "min", "max", "norm"), found, strict=True))


def spelled(statistics: Mapping[str, float]) -> str:
    """Spell `mean 0.0123, max 4.2, norm 23.7`."""
    return ", ".join(f"{name} {number(statistics[name])}" for name in ("mean", "max", "norm") if name in statistics)


def statistics(values: AnyArray) -> dict[str, float]:
    """Return mean, standard deviation, minimum, maximum and L2 norm, computed in float64. Empty for an empty array."""
    if values.size == 0:
        return {}
    numbers = values.astype(np.float64)
    return {
        "mean": float(numbers.mean()),
        "std": float(numbers.std()),
        "min": float(numbers.min()),
        "max": float(numbers.max()),
        "norm": float(np.linalg.norm(numbers.ravel())),
    }


def summary(values: AnyArray) -> str:
    """Spell `mean 0.0123, max 4.2, norm 23.7`; a single number as itself."""
    if values.ndim == 0:
        return number(values.item())
    return spelled(statistics(values)) or "empty"
