"""Steering vectors and tuned lenses, and how a job is run. A steering vector is a direction in which the positive rows
differ from the others, as long as the difference of the means along it, so that a coefficient of 1 moves one mean as
far as the other."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.numpy import save
from torch import Tensor

from djinn_jupyter.errors import UsageError
from djinn_jupyter.methods.datasets.api.activations import Activations
from djinn_jupyter.modules.files import folder, saelens
from djinn_jupyter.modules.files.files import write_folder
from djinn_jupyter.modules.training.collections import provenance
from djinn_jupyter.modules.training.jobs import (
    AnyJob,
    Method,
    ProbeJob,
    SaeJob,
    SteeringJob,
    TranscoderJob,
    TunedLensJob,
)
from djinn_jupyter.modules.training.probes import (
    CollectedRows,
    Remembered,
    Report,
    labels_of,
    left_out,
    logistic,
    never,
    rows_of,
    train_probe,
)
from djinn_jupyter.modules.training.process import PROVENANCE, VECTOR
from djinn_jupyter.modules.training.sae import train_sae, train_transcoder


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SteeringDirection:
    """The vector, and the scale on which rows are read: 0 at the mean of the negative rows, 1 at the mean of the
    positive rows."""

    vector_D: Tensor
    weight_1D: Tensor
    bias_1: Tensor


def direction(
    x_ND: Tensor, positive_N: Tensor, method: Method, penalty: float, report: Report = never
) -> SteeringDirection:
    """Return the direction that a method finds. Raises UsageError where the means coincide along it."""
    x_ND = x_ND.double()
    low_D, high_D = x_ND[~positive_N].mean(0), x_ND[positive_N].mean(0)
    unit_D = _along(x_ND, positive_N, high_D - low_D, method, penalty, report)
    length = (high_D - low_D) @ unit_D
    if not abs(float(length)) > 0:
        raise UsageError("Positive and other rows have the same mean along this direction, so it steers nowhere.")
    vector_D = length * unit_D
    weight_D = vector_D / vector_D.square().sum()
    return SteeringDirection(vector_D=vector_D, weight_1D=weight_D[None], bias_1=-(weight_D @ low_D)[None])


def _along(x_ND: Tensor, positive_N: Tensor, apart_D: Tensor, method: Method, penalty: float, report: Report) -> Tensor:
    """Return the direction, of length 1; its sign is chosen by the means."""
    if method == "mean_difference":
        found_D = apart_D
    elif method == "pca":
        found_D = torch.linalg.svd(x_ND - x_ND.mean(0), full_matrices=False).Vh[0]
    else:
        found_D = logistic(x_ND, positive_N.long(), 2, penalty, report).weight_CD[0]
    length = found_D.norm()
    return found_D / length if length > 0 else found_D


# Tuned lenses (Belrose et al. 2023, 2303.08112): an affine translation of a residual, x + x A^T + b, after which the
# model's own head predicts the next token as after the last layer. It begins as the logit lens. Shapes: N rows, B of a
# batch, D of the residual, V tokens.

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
    """Return the tensors of a lens trained on the rows that are not held out, and the divergence from the model's own
    probabilities on the held-out rows (without any, on the others), in nats: of the logit lens, and of this one."""
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


# One job: a collection read, a module trained on it, its folder written.

Contents = tuple[dict[str, bytes], dict[str, float]]


def run(job: AnyJob, report: Report) -> None:
    """Train, and write the folder, also of a training that the `report` ends early. Raises UsageError and
    StorageFailed, with nothing written."""
    report = last = Remembered(report)
    torch.set_num_threads(job.threads)
    torch.use_deterministic_algorithms(True)
    collection = Activations(job.collection)
    rows = rows_of(collection, job.site)
    if isinstance(job, TunedLensJob):
        end, out = rows_of(collection, job.last).values_ND, left_out(rows, job.held_out, job.seed)
        tensors, figures = train_lens(rows.values_ND, end, out, job, report)
        files = _declared("tuned_lens", tensors, job.site)
    elif isinstance(job, TranscoderJob):
        made_NO = rows_of(collection, job.written).values_ND
        tensors, figures = train_transcoder(rows.values_ND, made_NO, job, report)
        files = _as_saelens(tensors, job.site, collection.model, job.written)
    else:
        files, figures = _contents(job, rows, collection.model, report)
    by = {"torch": torch.__version__}, torch.backends.cpu.get_cpu_capability()
    far = {"done": last.done, "of": last.of} if last.ended and last.done < last.of else None
    write_folder(Path(job.to), files | {PROVENANCE: provenance(job, collection, figures, *by, interrupted=far)})


def _contents(job: SaeJob | ProbeJob | SteeringJob, rows: CollectedRows, model: str, report: Report) -> Contents:
    if isinstance(job, SaeJob):
        tensors, figures = train_sae(rows.values_ND, job, report)
        return _as_saelens(tensors, job.site, model), figures
    if isinstance(job, ProbeJob):
        tensors, figures = train_probe(rows, job, report)
        return _declared("probe", tensors, job.site), figures
    return _of_steering(rows, job, report)


def _of_steering(rows: CollectedRows, job: SteeringJob, report: Report) -> Contents:
    """Return a probe that reads rows along the direction, and the vector itself."""
    positive_N = labels_of(rows, job.positive).bool()
    found = direction(rows.values_ND, positive_N, job.method, job.penalty, report)
    files = _declared("probe", {"weight": found.weight_1D, "bias": found.bias_1}, job.site)
    projected = rows.values_ND.double() @ found.weight_1D[0] + found.bias_1
    figures = {
        "length": float(found.vector_D.norm()),
        "told_apart": float(((projected > 0.5) == positive_N).double().mean()),
    }
    vector = io.BytesIO()
    np.save(vector, found.vector_D.float().numpy(), allow_pickle=False)
    return files | {VECTOR: vector.getvalue()}, figures


def _declared(kind: str, tensors: Mapping[str, Tensor], site: str) -> dict[str, bytes]:
    form = {"kind": kind, "dtype": "float32", "trained_at": site}
    return {folder.DECLARED: _json(form), folder.TENSORS: _file(tensors)}


def _as_saelens(tensors: Mapping[str, Tensor], site: str, model: str, written: str | None = None) -> dict[str, bytes]:
    width, features = tensors["W_enc"].shape
    places = {"hook_name": site} | ({} if written is None else {"hook_name_out": written})
    form = {
        "architecture": "jumprelu" if written is None else "jumprelu_transcoder",
        "d_in": width,
        "d_sae": features,
        "dtype": "float32",
        "device": "cpu",
        "apply_b_dec_to_input": written is None,
        "normalize_activations": "none",
        "reshape_activations": "none",
        "metadata": places | {"model_name": model},
    }
    if written is not None:
        form["d_out"] = tensors["W_dec"].shape[1]
    return {saelens.CONFIGURATION: _json(form), saelens.WEIGHTS: _file(tensors)}


def _json(declared: Mapping[str, Any]) -> bytes:
    return (json.dumps(declared, indent=1) + "\n").encode()


def _file(tensors: Mapping[str, Tensor]) -> bytes:
    """Return the file of some tensors: the same values give the same bytes."""
    return save({name: tensor.detach().to(torch.float32).contiguous().numpy() for name, tensor in tensors.items()})
