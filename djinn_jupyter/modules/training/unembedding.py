"""The way from the last residual to the logits, as a norm, a matrix and an offset: found by making the logits of the
model from collected rows, and refused where that does not succeed."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np

from djinn_jupyter.api.arrays import to_numpy
from djinn_jupyter.api.engine import RemoteEngine
from djinn_jupyter.api.likeness import temporary_session
from djinn_jupyter.errors import UsageError
from djinn_jupyter.link.channel import ask_for
from djinn_jupyter.methods.datasets.api.activations import Activations
from djinn_jupyter.methods.datasets.request import Score

Norm = Literal["rms", "layer"]
CANDIDATES: Final[tuple[tuple[Norm, bool], ...]] = (("rms", False), ("layer", False), ("layer", True))
EPSILONS: Final = (1e-5, 1e-6, 1e-8, 1e-12)
ENOUGH_ROWS: Final = 8  # to tell an offset from what a wrong norm leaves
PROMPTS: Final = 8
TOLERANCE: Final = {"float32": 2e-3}  # of the spread of the logits
TOLERANCE_OF_OTHERS: Final = 0.1


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Unembedding:
    """`norm(x) @ matrix_DV + offset_V`, the gain of the norm multiplied in."""

    norm: Norm
    epsilon: float
    matrix_DV: np.ndarray[Any, Any]
    offset_V: np.ndarray[Any, Any]

    def logits(self, x_ND: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        found: np.ndarray[Any, Any] = normed(x_ND, self.norm, self.epsilon) @ self.matrix_DV + self.offset_V
        return found

    def save(self, path: Path) -> None:
        np.savez(path, matrix=self.matrix_DV, offset=self.offset_V)


def normed(x_ND: Any, norm: Norm, epsilon: float) -> Any:
    """Return rows of root mean square 1, for a layer norm about their mean."""
    centred = x_ND - x_ND.mean(-1, keepdims=True) if norm == "layer" else x_ND
    return centred / ((centred**2).mean(-1, keepdims=True) + epsilon) ** 0.5


def unembedding_of(engine: RemoteEngine, collection: Activations, last: str) -> Unembedding:
    """Return the unembedding of the engine's model. Raises UsageError where the logits are not made so, or the
    collection is of another model."""
    rows, logits = _examples(engine, collection, last)
    matrix_DV = np.asarray(engine.weight("W_U", fold_norm=True), dtype="f8")
    allowed = TOLERANCE.get(engine.description.dtype, TOLERANCE_OF_OTHERS) * float(logits.std())
    for norm, has_offset in CANDIDATES:
        for epsilon in EPSILONS:
            left = logits - normed(rows, norm, epsilon) @ matrix_DV
            offset = left.mean(0) if has_offset and len(rows) >= ENOUGH_ROWS else np.zeros(left.shape[1])
            if float(np.abs(left - offset).max()) <= allowed:
                return Unembedding(norm=norm, epsilon=epsilon, matrix_DV=matrix_DV, offset_V=offset)
    raise UsageError(
        f"The logits of {engine.description.name} are not made from {last} of this collection by a norm and W_U, so no "
        "lens can be tuned by it: collect from this very model, and from one without a cap on its logits."
    )


def _examples(engine: RemoteEngine, collection: Activations, last: str) -> tuple[Any, Any]:
    """Return rows of the last residual and the model's logits there."""
    rows, logits = [], []
    for number in range(min(PROMPTS, len(collection))):
        with temporary_session(engine.channel, "score") as session:
            tokens = tuple(int(one) for one in collection.tokens[number])
            reply = ask_for(engine.channel, Score(session=session, prompts=(tokens,), what="logits"))
        found = to_numpy(reply.values)
        logits.append(found if collection.positions is None else found[list(collection.positions)])
        rows.append(np.asarray(collection[last][number]).reshape(len(logits[-1]), -1))
    return np.concatenate(rows).astype("f8"), np.concatenate(logits).astype("f8")
