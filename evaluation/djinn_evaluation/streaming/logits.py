"""The logits of the ring against those of the reference by hand, and which criterion decided."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

TOP: Final = 5
Row = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """New tokens after one prompt, and the fp32 logits [V] of the last."""

    tokens: tuple[int, ...]
    logits: Row

    @classmethod
    def of(cls, reply: Mapping[str, Any]) -> Answer:
        """Return a baseline's answer."""
        row = np.frombuffer(base64.b64decode(reply["logits"]), dtype=np.float32)
        return cls(tokens=tuple(reply["tokens"]), logits=row)

    def likeliest(self) -> list[int]:
        """Return the most likely tokens; none where a logit is no number, which is like no other."""
        if np.isnan(self.logits).any():
            return []
        return [int(token) for token in np.argsort(-self.logits, kind="stable")[:TOP]]


def compared(ours: Sequence[Answer], reference: Sequence[Answer], *, same_device: bool) -> dict[str, Any]:
    """Return the fields of the comparison: bits decide on one device, the five most likely tokens on two. Each
    difference is the worst of all samples."""
    pairs = list(zip(ours, reference, strict=True))
    off = [np.abs(one.logits.astype(np.float64) - other.logits.astype(np.float64)) for one, other in pairs]
    bitwise = all(equal(one, other) for one, other in pairs)
    likeliest = all(one.likeliest() == other.likeliest() != [] and one.tokens == other.tokens for one, other in pairs)
    return {
        "samples": len(pairs),
        "decided_by": "bits" if same_device else "five most likely tokens",
        "passed": bitwise if same_device else likeliest,
        "bitwise_equal": bitwise,
        "five_most_likely_equal": likeliest,
        "max_diff": max(finite(row.max()) for row in off),
        "norm_diff": max(finite(np.linalg.norm(row)) for row in off),
    }


def equal(one: Answer, other: Answer) -> bool:
    return one.tokens == other.tokens and one.logits.tobytes() == other.logits.tobytes()


def finite(value: Any) -> float:
    """Return a number that JSON has: NaN, of weights that had not arrived, is the largest there is."""
    return float(value) if np.isfinite(value) else float(np.finfo(np.float64).max)
