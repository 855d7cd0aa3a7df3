"""An SAE with a top-k over the batch (BatchTopK, Bussmann et al. 2024, 2412.06410), saved as a JumpReLU with the
threshold by which as many features fire (2407.14435): one feature then costs its own row and no ranking.

Features that have not fired for long learn from what the others leave (the auxiliary loss of 2406.04093). Shapes: B
rows of a batch, D features of the point, F of the SAE.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor
from torch.nn.functional import linear

from djinn_jupyter.client.training.jobs import SaeJob
from djinn_jupyter.training.reporting import Report

SILENT_STEPS: Final = 100  # a feature that has not fired for so many is dead
DEAD_SHARE: Final = 1 / 32  # of their loss in the whole
WARM_UP: Final = 0.05  # the share of the steps in which the rate rises
FALL: Final = 0.2  # in which it falls
MEASURED_ROWS: Final = 8192


@dataclass(slots=True, eq=False)
class SaeWeights:
    """The SAE in training, of rows divided by their mean length."""

    encoder_FD: Tensor
    bias_F: Tensor
    decoder_FD: Tensor
    decoder_bias_D: Tensor

    def all(self) -> list[Tensor]:
        return [self.encoder_FD, self.bias_F, self.decoder_FD, self.decoder_bias_D]

    def before(self, x_BD: Tensor) -> Tensor:
        """Return what the encoder makes of rows, before it is decided which features fire."""
        return linear(x_BD - self.decoder_bias_D, self.encoder_FD, self.bias_F).relu()


def train_sae(rows_ND: Tensor, job: SaeJob, report: Report) -> tuple[dict[str, Tensor], dict[str, float]]:
    """Return the tensors of a JumpReLU SAE as SAELens names them, and figures of it."""
    draw = torch.Generator().manual_seed(job.seed)
    scale = float(rows_ND.norm(dim=1).mean()) or 1.0
    weights = _drawn(rows_ND / scale, job.features, draw)
    _descend(weights, rows_ND / scale, job, draw, report)
    sample_BD = rows_ND[torch.randperm(len(rows_ND), generator=draw)[:MEASURED_ROWS]]
    with torch.no_grad():
        threshold = _threshold(weights.before(sample_BD / scale), job.active)
        tensors = _unscaled(weights, scale, threshold)
        return tensors, _figures(tensors, sample_BD)


@torch.no_grad()
def _drawn(x_ND: Tensor, features: int, draw: torch.Generator) -> SaeWeights:
    """Return weights to begin with: directions at random, each read as it is written."""
    decoder_FD = torch.randn(features, x_ND.shape[1], generator=draw)
    decoder_FD /= decoder_FD.norm(dim=1, keepdim=True)
    return SaeWeights(decoder_FD.clone(), torch.zeros(features), decoder_FD, x_ND.mean(0))


def _descend(weights: SaeWeights, x_ND: Tensor, job: SaeJob, draw: torch.Generator, report: Report) -> None:
    for tensor in weights.all():
        tensor.requires_grad_()
    adam = torch.optim.Adam(weights.all(), lr=job.rate, betas=(0.9, 0.999))
    silent_F = torch.zeros(job.features, dtype=torch.long)
    for step in range(job.steps):
        adam.param_groups[0]["lr"] = job.rate * _share(step / job.steps)
        chosen = torch.randint(len(x_ND), (job.batch,), generator=draw)
        loss, fired_F = _loss(weights, x_ND[chosen], job.active, silent_F >= SILENT_STEPS)
        adam.zero_grad()
        loss.backward()
        _keep_lengths(weights.decoder_FD, adam)
        silent_F = torch.where(fired_F, 0, silent_F + 1)
        report(step + 1, job.steps, loss)


def _share(done: float) -> float:
    """Return the share of the rate when a share of the steps is done."""
    return min(1.0, (done + 0.001) / WARM_UP, (1 - done) / FALL)


def _loss(weights: SaeWeights, x_BD: Tensor, active: int, dead_F: Tensor) -> tuple[Tensor, Tensor]:
    """Return the loss of a batch, and which features fired."""
    before_BF = weights.before(x_BD)
    features_BF = before_BF * (before_BF > _threshold(before_BF.detach(), active))
    left_BD = x_BD - (features_BF @ weights.decoder_FD + weights.decoder_bias_D)
    loss = left_BD.square().sum(1).mean()
    if dead_F.any():
        loss = loss + DEAD_SHARE * _loss_of_dead(weights, x_BD, left_BD.detach(), dead_F)
    return loss, features_BF.detach().any(0)


def _loss_of_dead(weights: SaeWeights, x_BD: Tensor, left_BD: Tensor, dead_F: Tensor) -> Tensor:
    """Return how badly the strongest dead features of each row reconstruct what the others left."""
    rows_FD = weights.encoder_FD[dead_F]
    before = linear(x_BD - weights.decoder_bias_D.detach(), rows_FD, weights.bias_F[dead_F])
    values, places = before.topk(min(x_BD.shape[1] // 2, len(rows_FD)), dim=1)
    features = torch.zeros_like(before).scatter(1, places, values.relu())
    return (left_BD - features @ weights.decoder_FD[dead_F]).square().sum(1).mean()


def _threshold(before_BF: Tensor, active: int) -> Tensor:
    """Return the value above which `active` features a row fire, in the mean over the rows."""
    count = min(active * len(before_BF), before_BF.numel() - 1)
    return before_BF.flatten().topk(count + 1, sorted=False).values.min()


@torch.no_grad()
def _keep_lengths(decoder_FD: Tensor, adam: torch.optim.Adam) -> None:
    """Step, with rows of the decoder as long as they are: 1."""
    assert decoder_FD.grad is not None
    decoder_FD.grad -= (decoder_FD.grad * decoder_FD).sum(1, keepdim=True) * decoder_FD
    adam.step()
    decoder_FD /= decoder_FD.norm(dim=1, keepdim=True)


def _unscaled(weights: SaeWeights, scale: float, threshold: Tensor) -> dict[str, Tensor]:
    """Return the tensors for rows as they are, whose features are as much larger."""
    return {
        "W_enc": weights.encoder_FD.detach().T.contiguous(),
        "b_enc": weights.bias_F.detach() * scale,
        "threshold": (threshold * scale).expand(len(weights.bias_F)).contiguous(),
        "W_dec": weights.decoder_FD.detach().clone(),
        "b_dec": weights.decoder_bias_D.detach() * scale,
    }


def _figures(tensors: dict[str, Tensor], x_BD: Tensor) -> dict[str, float]:
    """Return the share of the variance that the SAE explains, its active features a row, and the share that never fire,
    on rows of the collection."""
    before_BF = ((x_BD - tensors["b_dec"]) @ tensors["W_enc"] + tensors["b_enc"]).relu()
    features_BF = before_BF * (before_BF > tensors["threshold"])
    left_BD = x_BD - features_BF @ tensors["W_dec"] - tensors["b_dec"]
    variance = (x_BD - x_BD.mean(0)).square().sum()
    return {
        "explained_variance": 1 - float(left_BD.square().sum() / variance) if variance > 0 else math.nan,
        "active": float((features_BF > 0).sum(1).float().mean()),
        "never_active": float((~features_BF.any(0)).float().mean()),
    }
