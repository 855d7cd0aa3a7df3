"""The readings of one token in a row of logits, for conditions and metrics."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def of_token(name: str, logits_V: Tensor, token: int) -> float:
    """Return the `logit` of a token, its probability (`p`, `prob`), or its `rank`, of which 1 is the most likely; NaN
    where its logit is."""
    row = logits_V.to(torch.float32)
    match name:
        case "logit":
            return float(row[token])
        case "rank":
            return math.nan if row[token].isnan() else float((row > row[token]).sum()) + 1
    return float(torch.softmax(row, dim=-1)[token])
