"""The rows of a collection: one for each position of each prompt that was kept, as float32."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from djinn_jupyter.client.activations import Activations
from djinn_jupyter.errors import UsageError


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CollectedRows:
    """`prompts` has the number of each row's prompt."""

    values_ND: Tensor
    prompts_N: Tensor


def rows_of(collection: Activations, site: str) -> CollectedRows:
    """Return the rows of a site. Raises UsageError where it has no vector for each position, or NaN or infinity."""
    values = collection[site]
    counts = [len(one) if values.by_token else _positions(collection) for one in collection.tokens]
    found: Any = np.asarray(values)
    within = found.shape[1:] if values.by_token or _positions(collection) == 1 else found.shape[2:]
    if len(within) != 1:
        raise UsageError(
            f"{site} has {list(within)} for a position, and a module reads a vector: collect another site."
        )
    rows_ND = torch.from_numpy(np.ascontiguousarray(found.reshape(-1, within[0]), dtype=np.float32).copy())
    if not bool(rows_ND.isfinite().all()):
        raise UsageError(f"{site} has NaN or infinity in this collection, so nothing can be trained on it.")
    return CollectedRows(values_ND=rows_ND, prompts_N=torch.repeat_interleave(torch.tensor(counts)))


def _positions(collection: Activations) -> int:
    """Return the positions that were kept of each prompt; 1 where all were, of prompts of any length."""
    return 1 if collection.positions is None else len(collection.positions)
