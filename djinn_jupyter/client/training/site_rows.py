"""The rows of a site in a collection: one for each position of each prompt that was kept, as float32; and their
labels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from djinn_jupyter.errors import UsageError
from djinn_jupyter.methods.datasets.api.activations import Activations

Numbers = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SiteRows:
    """`prompts_N` has the number of each row's prompt."""

    values_ND: Numbers
    prompts_N: Numbers


def rows_of(collection: Activations, site: str) -> SiteRows:
    """Return the rows of a site. Raises UsageError where it has no vector for each position, or NaN or infinity."""
    values = collection[site]
    counts = [len(one) if values.by_token else _positions(collection) for one in collection.tokens]
    found: Any = np.asarray(values)
    within = found.shape[1:] if values.by_token or _positions(collection) == 1 else found.shape[2:]
    if len(within) != 1:
        raise UsageError(
            f"{site} has {list(within)} for a position, and a module reads a vector: collect another site."
        )
    rows_ND = np.ascontiguousarray(found.reshape(-1, within[0]), dtype=np.float32).copy()
    if not np.isfinite(rows_ND).all():
        raise UsageError(f"{site} has NaN or infinity in this collection, so nothing can be trained on it.")
    return SiteRows(values_ND=rows_ND, prompts_N=np.repeat(np.arange(len(counts)), counts))


def labels_of(prompts_N: Numbers, labels: Sequence[float]) -> Numbers:
    """Return the label of each row, of labels for each prompt or for each row. Raises UsageError for another number."""
    prompts = int(prompts_N[-1]) + 1
    given: Numbers = np.asarray(labels, dtype=np.float64)
    if len(labels) == prompts:
        return given[prompts_N]
    if len(labels) == len(prompts_N):
        return given
    raise UsageError(
        f"There are {len(labels):,} labels for {prompts:,} prompts with {len(prompts_N):,} positions together: "
        "give one for each prompt, or one for each position."
    )


def _positions(collection: Activations) -> int:
    """Return the positions that were kept of each prompt; 1 where all were, of prompts of any length."""
    return 1 if collection.positions is None else len(collection.positions)
