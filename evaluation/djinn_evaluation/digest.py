"""The digest by which two sides compare the bits of their logits. Imports neither numpy nor torch."""

from __future__ import annotations

import hashlib
from typing import Protocol


class NumpyArray(Protocol):
    """An array of numpy."""

    def tobytes(self) -> bytes: ...


def digest(logits: NumpyArray) -> str:
    """Return the digest of the bits of fp32 logits; `baselines.weights.digest` makes the same of a tensor."""
    return hashlib.sha256(logits.tobytes()).hexdigest()
