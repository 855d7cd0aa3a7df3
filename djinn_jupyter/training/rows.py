"""The rows of a collection as tensors."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from djinn_jupyter.client.training import site_rows
from djinn_jupyter.methods.datasets.api.activations import Activations


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CollectedRows:
    """`prompts` has the number of each row's prompt."""

    values_ND: Tensor
    prompts_N: Tensor


def rows_of(collection: Activations, site: str) -> CollectedRows:
    """Return the rows of a site. Raises UsageError where it has no vector for each position, or NaN or infinity."""
    found = site_rows.rows_of(collection, site)
    return CollectedRows(values_ND=torch.from_numpy(found.values_ND), prompts_N=torch.from_numpy(found.prompts_N))
