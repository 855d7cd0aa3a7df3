"""The numbers in the sentences that say how large a run was, by the number of the claim, and the field of our run that
has to reach each. Numbers that a run measures are judged by its verdict and do not stand here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from djinn_evaluation.claims import verdicts
from djinn_evaluation.claims.claim import StatedSize
from djinn_evaluation.claims.paths import AGENTS, FEW, GPT2, LOGITS, SLEEP, TWICE, P, W
from djinn_jupyter.units import GIB

LAYERS: Final = W + "token_accuracy.entries[].layer"
COPIED: Final = P + "swap_events[].bytes"
SHAPES: Final = GPT2 + "token_accuracy.entries[].captured_shape"
NEAR: Final = verdicts.NEAR  # of an amount of memory
BILLIONS: Final = 2 * 1e9 / GIB  # GiB of a billion parameters in 16 bits

OF_SLAB: Final = "memory_breakdown.slab_limit_gb"
OF_WEIGHTS: Final = "memory_breakdown.model_weights_gb"
OF_SESSION: Final = "memory_breakdown.kv_cache_per_session_gb"


def decimal(found: list[float]) -> float:
    """Return the GB of the least of some GiB."""
    return min(found) * GIB / 1e9


def least_copied(found: list[int]) -> int:
    """Return the least bytes of swaps that copied some."""
    return min(filter(None, found), default=0)


def different(found: list[Any]) -> int:
    """Return how many different values a run has."""
    return len(set(found))


def positions(number: int) -> StatedSize:
    """Return the size of the prompt that was stopped in, in tokens."""
    return StatedSize(number=number, what="positions", field=W + "baseline_prompt", of=len)


SIZES: Final[Mapping[int, tuple[StatedSize, ...]]] = {
    1: (
        positions(512),
        StatedSize(number=3, what="layers", field=LAYERS, of=different),
        StatedSize(number=3, what="trials", field=W + "token_accuracy.entries[].trial", of=different),
    ),
    2: (StatedSize(number=30, what="the last layer", field=LAYERS, of=max), positions(512)),
    3: (
        StatedSize(number=6, what="the last layer", field=GPT2 + "token_accuracy.entries[].layer", of=max),
        StatedSize(number=512, what="positions", field=SHAPES, of=lambda shapes: min(shape[1] for shape in shapes)),
        StatedSize(number=768, what="features", field=SHAPES, of=lambda shapes: min(shape[2] for shape in shapes)),
    ),
    4: (
        StatedSize(number=6, what="layer", field=W + "activation_steering.layer"),
        StatedSize(number=0.9, what="scale", field=W + "activation_steering.scale"),
    ),
    10: (StatedSize(number=4e6, what="bytes of the activation", field=W + "wire_bytes_stop"),),
    13: (StatedSize(number=24.3, what="GiB", near=NEAR),),
    16: (
        StatedSize(number=50, what="sessions", field=P + "num_sessions_requested"),
        StatedSize(number=41, what="the session that triggers a swap"),
    ),
    17: (StatedSize(number=80, what="GiB of the card", field=P + "card_gb", near=NEAR),),
    18: (StatedSize(number=1.3e9, what="bytes of a swap", field=COPIED, of=least_copied, near=NEAR),),
    19: (StatedSize(number=6, what="sessions", field=FEW + "num_sessions_requested"),),
    20: (
        StatedSize(
            number=70,
            what="billions of parameters in 16 bits",
            field=LOGITS + "pytorch_metrics.weights_gb",
            of=lambda found: max(found) / BILLIONS,
            near=NEAR,
        ),
    ),
    23: (
        StatedSize(
            number=30,
            what="seconds idle",
            field=SLEEP + "metrics.sleep_duration_ms",
            of=lambda found: min(found) / 1000,
        ),
    ),
    24: (StatedSize(number=80, what="agents", field=AGENTS + "ways[].agents", of=max),),
    26: (
        StatedSize(number=72, what="GiB of the slab", field=TWICE + OF_SLAB, near=NEAR),
        StatedSize(number=27, what="GB of weights", field=TWICE + OF_WEIGHTS, of=decimal, near=NEAR),
        StatedSize(number=1.3, what="GB of a session", field=TWICE + OF_SESSION, of=decimal, near=NEAR),
    ),
}
