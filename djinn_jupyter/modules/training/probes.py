"""Linear probes, the reports on a training while it runs, and its early end."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count as count_from
from typing import Final

import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy

from djinn_jupyter.errors import UsageError
from djinn_jupyter.methods.datasets.api.activations import Activations
from djinn_jupyter.modules.training import collections
from djinn_jupyter.modules.training.jobs import ProbeJob

Report = Callable[[int, int, Tensor], bool]
"""It is given the steps done, of how many, and the loss of the last. True ends the training with what it has."""


def never(done: int, of: int, loss: Tensor) -> bool:
    return False


@dataclass(slots=True)
class Remembered:
    """A report that remembers the progress of the training."""

    report: Report
    done: int = 0
    of: int = 0
    ended: bool = False

    def __call__(self, done: int, of: int, loss: Tensor) -> bool:
        self.done, self.of, self.ended = done, of, self.report(done, of, loss)
        return self.ended


# Linear probes: logistic regression to a class, ridge regression to a number. Both have one solution, which is computed
# in float64. Rows are centred and divided by one number, the root of their mean square, so that a penalty means the
# same at every site; the weights returned are for the original rows. Shapes: N rows, D features of the point, C
# outputs.

MOST_STEPS: Final = 2000
FLAT: Final = 1e-9  # the largest slope of a loss at its minimum


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Fit:
    """`x @ weight_CD.T + bias_C`."""

    weight_CD: Tensor
    bias_C: Tensor

    def read(self, x_ND: Tensor) -> Tensor:
        return x_ND.double() @ self.weight_CD.T + self.bias_C


class _Ended(Exception):
    """Raised inside a fit that is to end."""


def logistic(x_ND: Tensor, classes_N: Tensor, count: int, penalty: float, report: Report = never) -> Fit:
    """Return the fit of the least mean cross entropy plus penalty / 2 of the squared weights: one output for the second
    of two classes, else one a class. If the `report` ends it, return the best so far. Raises UsageError without a
    minimum: the classes are separable, and the penalty is 0 or almost."""
    z_ND, mean_D, scale = _standard(x_ND)
    outputs = 1 if count == 2 else count
    weight_CD = torch.zeros(outputs, z_ND.shape[1], dtype=torch.float64, requires_grad=True)
    bias_C = torch.zeros(outputs, dtype=torch.float64, requires_grad=True)
    solver = torch.optim.LBFGS(
        [weight_CD, bias_C],
        max_iter=MOST_STEPS,
        tolerance_grad=FLAT,
        tolerance_change=0.0,
        line_search_fn="strong_wolfe",
    )

    def loss() -> Tensor:
        solver.zero_grad()
        logits = z_ND @ weight_CD.T + bias_C
        if outputs == 1:
            lost = binary_cross_entropy_with_logits(logits[:, 0], classes_N.double())
        else:
            lost = cross_entropy(logits, classes_N)
        lost = lost + penalty / 2 * weight_CD.square().sum()
        lost.backward()
        return lost

    best: list[Tensor] = []
    tries = count_from(1)

    def reported() -> Tensor:
        lost = loss()
        if not best or bool(lost.detach() < best[0]):
            best[:] = [one.detach().clone() for one in (lost, weight_CD, bias_C)]
        if report(next(tries), MOST_STEPS, lost):
            raise _Ended
        return lost

    try:
        solver.step(reported)
    except _Ended:
        return _of_rows(best[1], best[2], mean_D, scale)
    loss()
    assert weight_CD.grad is not None
    if not float(weight_CD.grad.abs().max()) < FLAT**0.5:
        raise UsageError(f"The probe does not settle with penalty {penalty:g}: give it a larger one.")
    return _of_rows(weight_CD.detach(), bias_C.detach(), mean_D, scale)


def ridge(x_ND: Tensor, targets_N: Tensor, penalty: float) -> Fit:
    """Return the fit of the least mean squared error plus penalty of the squared weights, in closed form."""
    z_ND, mean_D, scale = _standard(x_ND)
    targets = targets_N.double()
    own = penalty * torch.eye(z_ND.shape[1], dtype=torch.float64)
    gram_DD, with_targets = z_ND.T @ z_ND / len(z_ND), z_ND.T @ (targets - targets.mean()) / len(z_ND)
    weight_D = torch.linalg.lstsq(gram_DD + own, with_targets[:, None], driver="gelsd").solution[:, 0]
    return _of_rows(weight_D[None], targets.mean()[None], mean_D, scale)


def _standard(x_ND: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    mean_D = x_ND.double().mean(0)
    centred_ND = x_ND.double() - mean_D
    scale = centred_ND.square().mean().sqrt()
    if not scale > 0:
        raise UsageError("All rows are the same, so nothing can be told apart by them.")
    return centred_ND / scale, mean_D, scale


def _of_rows(weight_CD: Tensor, bias_C: Tensor, mean_D: Tensor, scale: Tensor) -> Fit:
    weight_CD = weight_CD / scale
    return Fit(weight_CD=weight_CD, bias_C=bias_C - weight_CD @ mean_D)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CollectedRows:
    """`prompts` has the number of each row's prompt."""

    values_ND: Tensor
    prompts_N: Tensor


def rows_of(collection: Activations, site: str) -> CollectedRows:
    """Return the rows of a site. Raises UsageError where it has no vector for each position, or NaN or infinity."""
    found = collections.rows_of(collection, site)
    return CollectedRows(values_ND=torch.from_numpy(found.values_ND), prompts_N=torch.from_numpy(found.prompts_N))


def labels_of(rows: CollectedRows, labels: Sequence[float]) -> Tensor:
    """Return the label of each row, from labels for each prompt or for each row. Raises UsageError for another number
    of labels."""
    return torch.from_numpy(collections.labels_of(rows.prompts_N.numpy(), labels))


def left_out(rows: CollectedRows, share: float, seed: int) -> Tensor:
    """Return the rows that a training does not see: those of a share of the prompts, drawn by the seed."""
    prompts = int(rows.prompts_N[-1]) + 1
    draw = torch.Generator().manual_seed(seed)
    chosen = torch.zeros(prompts, dtype=torch.bool)
    chosen[torch.randperm(prompts, generator=draw)[: round(share * prompts)]] = True
    return chosen[rows.prompts_N]


def train_probe(rows: CollectedRows, job: ProbeJob, report: Report) -> tuple[dict[str, Tensor], dict[str, float]]:
    """Return the tensors of a probe, and its accuracy or explained share of the variance, on the prompts of the
    training and on those held out."""
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
