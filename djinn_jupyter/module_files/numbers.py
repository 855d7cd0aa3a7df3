"""Numbers in the tensors of a file, on which it depends whether a module is computed here."""

from __future__ import annotations

from typing import Any, Final

from djinn_jupyter.wire.arrays import Array

CLOSE: Final = 1.001e-5  # of `torch.allclose`, by which SAELens compares


def all_ones(array: Array) -> bool:
    """Return whether every number of a floating array is 1."""
    return bool((abs(_numbers(array) - 1.0) <= CLOSE).all())


def any_negative(array: Array) -> bool:
    """Return whether a number of a floating array is below 0."""
    return bool((_numbers(array) < 0).any())


def _numbers(array: Array) -> Any:
    import numpy as np

    if array.dtype == "bfloat16":  # the upper half of a float32
        return (np.frombuffer(array.data, dtype="<u2").astype("<u4") << 16).view("<f4")
    return np.frombuffer(array.data, dtype=np.dtype(array.dtype).newbyteorder("<"))
