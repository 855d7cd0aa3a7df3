"""Tuned lenses (Belrose et al. 2023, 2303.08112): an affine translation of a residual, x + x A^T + b, after which the
model's own head says the next token as it does after the last layer. It begins as the logit lens.

Shapes: N rows, B of a batch, D of the residual, V tokens.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from djinn_jupyter.client.training.jobs import TunedLensJob
from djinn_jupyter.training.reporting import Report

MEASURED_ROWS = 4096


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Head:
    """The way from a residual to the log probabilities of tokens."""

    norm: str
    epsilon: float
    matrix_DV: Tensor
    offset_V: Tensor

    @classmethod
    def of(cls, job: TunedLensJob) -> Head:
        with np.load(Path(job.head), allow_pickle=False) as arrays:
            matrix, offset = (torch.from_numpy(arrays[name]).float() for name in ("matrix", "offset"))
        return cls(norm=job.norm, epsilon=job.epsilon, matrix_DV=matrix, offset_V=offset)

    def log_probabilities(self, x_BD: Tensor) -> Tensor:
        centred = x_BD - x_BD.mean(-1, keepdim=True) if self.norm == "layer" else x_BD
        normed = centred * (centred.square().mean(-1, keepdim=True) + self.epsilon).rsqrt()
        return (normed @ self.matrix_DV + self.offset_V).log_softmax(-1)


def train_lens(
    x_ND: Tensor, last_ND: Tensor, out_N: Tensor, job: TunedLensJob, report: Report
) -> tuple[dict[str, Tensor], dict[str, float]]:
    """Return the tensors of a lens trained on the rows that are not left out, and the divergence from the model's own
    probabilities on those that are (on the others where none is), in nats: of the logit lens, and of this one."""
    draw = torch.Generator().manual_seed(job.seed)
    head, seen = Head.of(job), (~out_N).nonzero().flatten()
    scale = float(x_ND.norm(dim=1).mean()) or 1.0
    weight_DD = torch.zeros(x_ND.shape[1], x_ND.shape[1], requires_grad=True)
    bias_D = torch.zeros(x_ND.shape[1], requires_grad=True)
    adam = torch.optim.Adam([weight_DD, bias_D], lr=job.rate)
    for step in range(job.steps):
        adam.param_groups[0]["lr"] = job.rate * (1 - step / job.steps)
        chosen = seen[torch.randint(len(seen), (job.batch,), generator=draw)]
        loss = divergence(head, _translated(x_ND[chosen], weight_DD, scale * bias_D), last_ND[chosen])
        adam.zero_grad()
        loss.backward()
        adam.step()
        if report(step + 1, job.steps, loss):
            break
    with torch.no_grad():
        tensors = {"weight": weight_DD.detach(), "bias": scale * bias_D.detach()}
        asked = (out_N.nonzero().flatten() if out_N.any() else seen)[:MEASURED_ROWS]
        translated = _translated(x_ND[asked], tensors["weight"], tensors["bias"])
        return tensors, {
            "divergence_of_logit_lens": float(divergence(head, x_ND[asked], last_ND[asked])),
            "divergence": float(divergence(head, translated, last_ND[asked])),
        }


def divergence(head: Head, said_BD: Tensor, last_BD: Tensor) -> Tensor:
    """Return the mean Kullback-Leibler divergence of the lens's probabilities from the model's own."""
    own_BV = head.log_probabilities(last_BD)
    return (own_BV.exp() * (own_BV - head.log_probabilities(said_BD))).sum(-1).mean()


def _translated(x_BD: Tensor, weight_DD: Tensor, bias_D: Tensor) -> Tensor:
    return x_BD + x_BD @ weight_DD.T + bias_D
