"""A probe trained on some of the prompts and measured on the others."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from djinn_jupyter.client.training.jobs import ProbeJob
from djinn_jupyter.errors import UsageError
from djinn_jupyter.training.labelling import labels_of, left_out
from djinn_jupyter.training.probe import Fit, logistic, ridge
from djinn_jupyter.training.reporting import Report
from djinn_jupyter.training.rows import CollectedRows


def train_probe(rows: CollectedRows, job: ProbeJob, report: Report) -> tuple[dict[str, Tensor], dict[str, float]]:
    """Return the tensors of a probe, and how often it is right, or the share of the variance that it explains: on the
    prompts that it was trained on, and on those held out."""
    labels_N = labels_of(rows, job.labels)
    out_N = left_out(rows, job.held_out, job.seed)
    seen_ND, seen_N = rows.values_ND[~out_N], labels_N[~out_N]
    if job.classes:
        _require_all(seen_N, job.classes)
        fit = logistic(seen_ND, seen_N.long(), len(job.classes), job.penalty, report)
        name: str = "accuracy"
        measure: Callable[[Fit, Tensor, Tensor], float] = _accuracy
    else:
        fit = ridge(seen_ND, seen_N, job.penalty)
        name, measure = "explained_variance", _explained
    figures = {f"{name}_trained": measure(fit, seen_ND, seen_N)}
    if out_N.any():
        figures[f"{name}_held_out"] = measure(fit, rows.values_ND[out_N], labels_N[out_N])
    return {"weight": fit.weight_CD, "bias": fit.bias_C}, figures


def _require_all(seen_N: Tensor, classes: tuple[str, ...]) -> None:
    missing = [name for place, name in enumerate(classes) if not bool((seen_N == place).any())]
    if missing:
        raise UsageError(
            f"No prompt of class {missing[0]} is left to train on: give more, or hold fewer out (held_out=0)."
        )


def _accuracy(fit: Fit, x_ND: Tensor, classes_N: Tensor) -> float:
    logits = fit.read(x_ND)
    said = (logits[:, 0] > 0).long() if logits.shape[1] == 1 else logits.argmax(1)
    return float((said == classes_N.long()).double().mean())


def _explained(fit: Fit, x_ND: Tensor, targets_N: Tensor) -> float:
    """Return the share of the variance; NaN where there is none."""
    left = (fit.read(x_ND)[:, 0] - targets_N).square().sum()
    return float(1 - left / (targets_N - targets_N.mean()).square().sum())
