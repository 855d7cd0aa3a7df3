"""An SAE with a top-k over the batch (BatchTopK, Bussmann et al. 2024, 2412.06410), saved as a JumpReLU with the
threshold at which as many features fire (2407.14435): one feature then costs its own row and no ranking.

Features that have not fired for long learn from the residual error of the others (the auxiliary loss of 2406.04093). A
transcoder (2406.11944) is trained likewise: it reads one point and makes another. Shapes: B rows of a batch, D features
of the input point, O of the output point (the same for an SAE), F of the module.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor
from torch.nn.functional import linear

from djinn_jupyter.modules.training.jobs import SaeJob, TranscoderJob
from djinn_jupyter.modules.training.probes import Report

SILENT_STEPS: Final = 100  # a feature that has not fired for so many is dead
DEAD_SHARE: Final = 1 / 32  # the weight of their loss
WARM_UP: Final = 0.05  # the share of the steps in which the rate rises
FALL: Final = 0.2  # in which it falls
MEASURED_ROWS: Final = 8192


@dataclass(slots=True, eq=False)
class DictionaryWeights:
    """The module in training, for rows divided by their mean length; `same` where it reconstructs its input."""

    encoder_FD: Tensor
    bias_F: Tensor
    decoder_FO: Tensor
    decoder_bias_O: Tensor
    same: bool

    def all(self) -> list[Tensor]:
        return [self.encoder_FD, self.bias_F, self.decoder_FO, self.decoder_bias_O]

    def given(self, x_BD: Tensor) -> Tensor:
        """Return the encoder's input: for an SAE without its decoder's bias."""
        return x_BD - self.decoder_bias_O if self.same else x_BD

    def before(self, x_BD: Tensor) -> Tensor:
        """Return the encoder's output before the choice of the firing features."""
        return linear(self.given(x_BD), self.encoder_FD, self.bias_F).relu()


@dataclass(frozen=True, slots=True, eq=False)
class TrainingRows:
    """Input rows and target rows, each divided by its scale."""

    read_ND: Tensor
    made_NO: Tensor

    def at(self, chosen: Tensor) -> TrainingRows:
        return TrainingRows(self.read_ND[chosen], self.made_NO[chosen])


def train_sae(rows_ND: Tensor, job: SaeJob, report: Report) -> tuple[dict[str, Tensor], dict[str, float]]:
    """Return the tensors of a JumpReLU SAE as SAELens names them, and figures of it."""
    draw = torch.Generator().manual_seed(job.seed)
    scale = _length(rows_ND)
    rows = TrainingRows(rows_ND / scale, rows_ND / scale)
    return _trained(_drawn(rows, job.features, draw, same=True), rows, (scale, scale), job, draw, report)


def train_transcoder(
    read_ND: Tensor, made_NO: Tensor, job: TranscoderJob, report: Report
) -> tuple[dict[str, Tensor], dict[str, float]]:
    """Return the tensors of a JumpReLU transcoder from one point to another as SAELens names them, and figures."""
    draw = torch.Generator().manual_seed(job.seed)
    scales = _length(read_ND), _length(made_NO)
    rows = TrainingRows(read_ND / scales[0], made_NO / scales[1])
    return _trained(_drawn(rows, job.features, draw, same=False), rows, scales, job, draw, report)


def _length(rows_ND: Tensor) -> float:
    return float(rows_ND.norm(dim=1).mean()) or 1.0


def _trained(
    weights: DictionaryWeights,
    rows: TrainingRows,
    scales: tuple[float, float],
    job: SaeJob,
    draw: torch.Generator,
    report: Report,
) -> tuple[dict[str, Tensor], dict[str, float]]:
    _descend(weights, rows, job, draw, report)
    sample = rows.at(torch.randperm(len(rows.read_ND), generator=draw)[:MEASURED_ROWS])
    with torch.no_grad():
        threshold = _threshold(weights.before(sample.read_ND), job.active)
        tensors = _unscaled(weights, scales, threshold)
        whole = TrainingRows(sample.read_ND * scales[0], sample.made_NO * scales[1])
        return tensors, _figures(tensors, whole, same=weights.same)


@torch.no_grad()
def _drawn(rows: TrainingRows, features: int, draw: torch.Generator, *, same: bool) -> DictionaryWeights:
    """Return initial weights: random directions; an SAE's encoder starts as its decoder's transpose."""
    decoder_FO = _directions(features, rows.made_NO.shape[1], draw)
    encoder_FD = decoder_FO.clone() if same else _directions(features, rows.read_ND.shape[1], draw)
    return DictionaryWeights(encoder_FD, torch.zeros(features), decoder_FO, rows.made_NO.mean(0), same)


def _directions(count: int, width: int, draw: torch.Generator) -> Tensor:
    found = torch.randn(count, width, generator=draw)
    found /= found.norm(dim=1, keepdim=True)
    return found


def _descend(
    weights: DictionaryWeights, rows: TrainingRows, job: SaeJob, draw: torch.Generator, report: Report
) -> None:
    for tensor in weights.all():
        tensor.requires_grad_()
    adam = torch.optim.Adam(weights.all(), lr=job.rate, betas=(0.9, 0.999))
    silent_F = torch.zeros(job.features, dtype=torch.long)
    for step in range(job.steps):
        adam.param_groups[0]["lr"] = job.rate * _share(step / job.steps)
        chosen = torch.randint(len(rows.read_ND), (job.batch,), generator=draw)
        loss, fired_F = _loss(weights, rows.at(chosen), job.active, silent_F >= SILENT_STEPS)
        adam.zero_grad()
        loss.backward()
        _keep_lengths(weights.decoder_FO, adam)
        silent_F = torch.where(fired_F, 0, silent_F + 1)
        if report(step + 1, job.steps, loss):
            break


def _share(done: float) -> float:
    """Return the share of the rate after a share of the steps."""
    return min(1.0, (done + 0.001) / WARM_UP, (1 - done) / FALL)


def _loss(weights: DictionaryWeights, rows: TrainingRows, active: int, dead_F: Tensor) -> tuple[Tensor, Tensor]:
    """Return the loss of a batch, and the features that fired."""
    before_BF = weights.before(rows.read_ND)
    features_BF = before_BF * (before_BF > _threshold(before_BF.detach(), active))
    left_BO = rows.made_NO - (features_BF @ weights.decoder_FO + weights.decoder_bias_O)
    loss = left_BO.square().sum(1).mean()
    if dead_F.any():
        loss = loss + DEAD_SHARE * _loss_of_dead(weights, rows.read_ND, left_BO.detach(), dead_F)
    return loss, features_BF.detach().any(0)


def _loss_of_dead(weights: DictionaryWeights, x_BD: Tensor, left_BO: Tensor, dead_F: Tensor) -> Tensor:
    """Return how badly the strongest dead features of each row make the residual error of the others."""
    rows_FD = weights.encoder_FD[dead_F]
    given_BD = x_BD - weights.decoder_bias_O.detach() if weights.same else x_BD
    before = linear(given_BD, rows_FD, weights.bias_F[dead_F])
    values, places = before.topk(min(x_BD.shape[1] // 2, len(rows_FD)), dim=1)
    features = torch.zeros_like(before).scatter(1, places, values.relu())
    return (left_BO - features @ weights.decoder_FO[dead_F]).square().sum(1).mean()


def _threshold(before_BF: Tensor, active: int) -> Tensor:
    """Return the value above which on average `active` features a row fire."""
    count = min(active * len(before_BF), before_BF.numel() - 1)
    return before_BF.flatten().topk(count + 1, sorted=False).values.min()


@torch.no_grad()
def _keep_lengths(decoder_FO: Tensor, adam: torch.optim.Adam) -> None:
    """Step, and reset the decoder's rows to length 1."""
    assert decoder_FO.grad is not None
    decoder_FO.grad -= (decoder_FO.grad * decoder_FO).sum(1, keepdim=True) * decoder_FO
    adam.step()
    decoder_FO /= decoder_FO.norm(dim=1, keepdim=True)


def _unscaled(weights: DictionaryWeights, scales: tuple[float, float], threshold: Tensor) -> dict[str, Tensor]:
    """Return the tensors for unscaled rows, whose features scale with the output."""
    read, made = scales
    return {
        "W_enc": weights.encoder_FD.detach().T.contiguous() * (made / read),
        "b_enc": weights.bias_F.detach() * made,
        "threshold": (threshold * made).expand(len(weights.bias_F)).contiguous(),
        "W_dec": weights.decoder_FO.detach().clone(),
        "b_dec": weights.decoder_bias_O.detach() * made,
    }


def _figures(tensors: dict[str, Tensor], rows: TrainingRows, *, same: bool) -> dict[str, float]:
    """Return the explained share of the variance, the active features a row, and the share that never fire, on rows of
    the collection."""
    given_BD = rows.read_ND - tensors["b_dec"] if same else rows.read_ND
    before_BF = (given_BD @ tensors["W_enc"] + tensors["b_enc"]).relu()
    features_BF = before_BF * (before_BF > tensors["threshold"])
    left_BO = rows.made_NO - features_BF @ tensors["W_dec"] - tensors["b_dec"]
    variance = (rows.made_NO - rows.made_NO.mean(0)).square().sum()
    return {
        "explained_variance": 1 - float(left_BO.square().sum() / variance) if variance > 0 else math.nan,
        "active": float((features_BF > 0).sum(1).float().mean()),
        "never_active": float((~features_BF.any(0)).float().mean()),
    }
