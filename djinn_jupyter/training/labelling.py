"""The labels of rows, and the prompts that a training leaves out to be measured by."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from djinn_jupyter.client.training import site_rows
from djinn_jupyter.training.rows import CollectedRows


def labels_of(rows: CollectedRows, labels: Sequence[float]) -> Tensor:
    """Return the label of each row, of labels for each prompt or for each row. Raises UsageError for another number."""
    return torch.from_numpy(site_rows.labels_of(rows.prompts_N.numpy(), labels))


def left_out(rows: CollectedRows, share: float, seed: int) -> Tensor:
    """Return which rows a training does not see: those of a share of the prompts, drawn by the seed."""
    prompts = int(rows.prompts_N[-1]) + 1
    draw = torch.Generator().manual_seed(seed)
    chosen = torch.zeros(prompts, dtype=torch.bool)
    chosen[torch.randperm(prompts, generator=draw)[: round(share * prompts)]] = True
    return chosen[rows.prompts_N]
