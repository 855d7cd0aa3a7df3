"""Two values compared as an engine does it, in numpy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from djinn_jupyter.wire.readings import Apart, Compared, LargestDifference
from tests.widgets.samples import STOP

Values = np.ndarray[Any, Any]


def apart(a: Values, b: Values, positions: Sequence[int] | None = None, last: int = 12) -> Apart:
    """How far two values of one shape are apart, of which the first axis is that of positions."""
    positions = tuple(range(len(a)) if positions is None else positions)
    wide_a, wide_b = a.astype(np.float64), b.astype(np.float64)
    finite = np.isfinite(wide_a) & np.isfinite(wide_b)
    differ = (wide_a != wide_b) & ~(np.isnan(wide_a) & np.isnan(wide_b))
    with np.errstate(invalid="ignore"):
        differences = np.where(finite, np.abs(wide_b - wide_a), 0.0)
    sizes = np.linalg.norm(np.where(finite, wide_a, 0.0).reshape(len(a), -1), axis=1)
    distances = np.linalg.norm(differences.reshape(len(a), -1), axis=1)
    relative = tuple(float(d / s) if s else None for d, s in zip(distances, sizes, strict=True))
    return Apart(
        positions=positions[-last:],
        numbers=a.size,
        differing=int(differ.sum()),
        not_finite=int((differ & ~finite).sum()),
        largest=_largest(differences, a, b, positions),
        distances=relative[-last:],
    )


def _largest(differences: Values, a: Values, b: Values, positions: Sequence[int]) -> LargestDifference | None:
    row, *index = (int(one) for one in np.unravel_index(int(differences.argmax()), differences.shape))
    if not differences[(row, *index)]:
        return None
    return LargestDifference(
        difference=float(differences[(row, *index)]),
        position=positions[row],
        index=tuple(index),
        a=float(a[(row, *index)]),
        b=float(b[(row, *index)]),
    )


def compared(a: Values, b: Values, **changes: Any) -> Compared:
    fields = {
        "site": "resid_post.4",
        "stops": (STOP, STOP),
        "shapes": (a.shape, b.shape),
        "dtypes": ("float32", "float32"),
        "apart": apart(a, b) if a.shape == b.shape else None,
        **changes,
    }
    return Compared(**fields)
