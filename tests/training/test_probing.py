"""Probes and steering vectors beside what other computations of the same give: Newton's method and the normal equations
in numpy, eigenvectors, means by hand."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from djinn_jupyter.errors import UsageError
from djinn_jupyter.modules.training import running
from djinn_jupyter.modules.training.jobs import AnyJob, ProbeJob, SteeringJob
from djinn_jupyter.modules.training.probes import MOST_STEPS, CollectedRows, labels_of, left_out, logistic, never, ridge
from djinn_jupyter.modules.training.running import direction

DRAW = torch.Generator().manual_seed(2)
ROWS = 3 * torch.randn(300, 6, generator=DRAW) + 5
NOISE = torch.randn(300, generator=DRAW)
POSITIVE = (ROWS[:, 0] - ROWS[:, 1] + NOISE) > 0
PENALTY = 0.01


def standard() -> tuple[np.ndarray, np.ndarray, float]:
    x = ROWS.double().numpy()
    scale = np.sqrt(np.mean((x - x.mean(0)) ** 2))
    return (x - x.mean(0)) / scale, x.mean(0), scale


def newton(z: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Return weights and, last, the bias of the logistic regression of the least penalized mean loss."""
    design, found = np.c_[z, np.ones(len(z))], np.zeros(z.shape[1] + 1)
    own = np.diag([PENALTY] * z.shape[1] + [0.0])
    for _ in range(50):
        p = 1 / (1 + np.exp(-design @ found))
        slope = design.T @ (p - y) / len(y) + own @ found
        bend = (design * (p * (1 - p))[:, None]).T @ design / len(y) + own
        found = found - np.linalg.solve(bend, slope)
    return found


def test_a_probe_of_two_classes_is_what_newtons_method_finds() -> None:
    z, mean, scale = standard()
    expected = newton(z, POSITIVE.double().numpy())
    fit = logistic(ROWS, POSITIVE.long(), 2, PENALTY)
    assert np.allclose(fit.weight_CD[0].numpy(), expected[:-1] / scale, atol=1e-7)
    assert np.allclose(fit.bias_C.item(), expected[-1] - expected[:-1] @ mean / scale, atol=1e-6)


def test_a_probe_of_several_classes_is_at_the_least_loss() -> None:
    """The loss is convex, so it is the least where its slope by central differences is 0 in every direction."""
    classes = (ROWS[:, :3] + NOISE[:, None]).argmax(1)
    fit = logistic(ROWS, classes, 3, PENALTY)
    z, mean, scale = (torch.as_tensor(one) for one in standard())

    def loss(weight: Tensor, bias: Tensor) -> float:
        lost = torch.nn.functional.cross_entropy(z @ weight.T + bias, classes)
        return float(lost + PENALTY / 2 * weight.square().sum())

    weight, bias = fit.weight_CD * scale, fit.bias_C + fit.weight_CD @ mean
    for place in range(weight.numel()):
        step = torch.zeros(weight.numel(), dtype=torch.float64)
        step[place] = 1e-5
        there, back = (loss(weight + sign * step.reshape(weight.shape), bias) for sign in (1, -1))
        assert abs(there - back) / 2e-5 < 1e-6
    assert loss(weight, bias) < loss(weight * 0.99, bias)


def test_a_probe_of_numbers_is_that_of_the_normal_equations() -> None:
    targets = ROWS[:, 2] * 2 - ROWS[:, 3] + NOISE
    z, mean, scale = standard()
    y = targets.double().numpy()
    stacked = np.r_[z / np.sqrt(len(z)), np.sqrt(PENALTY) * np.eye(6)]
    expected = np.linalg.lstsq(stacked, np.r_[(y - y.mean()) / np.sqrt(len(z)), np.zeros(6)], rcond=None)[0]
    fit = ridge(ROWS, targets, PENALTY)
    assert np.allclose(fit.weight_CD[0].numpy(), expected / scale)
    assert np.allclose(fit.bias_C.item(), y.mean() - expected @ mean / scale)


def test_classes_that_a_line_parts_need_a_penalty() -> None:
    parted = ROWS[:, 0] > 5
    assert logistic(ROWS, parted.long(), 2, 0.01).weight_CD.isfinite().all()
    with pytest.raises(UsageError, match="All rows are the same"):
        logistic(torch.ones(9, 3), torch.arange(9) % 2, 2, 0.01)


def test_a_vector_is_the_difference_of_means_a_principal_component_or_of_the_regression() -> None:
    found = direction(ROWS, POSITIVE, "mean_difference", PENALTY)
    low, high = ROWS[~POSITIVE].double().mean(0), ROWS[POSITIVE].double().mean(0)
    assert torch.allclose(found.vector_D, high - low)
    read = torch.stack([low, high]) @ found.weight_1D[0] + found.bias_1
    assert torch.allclose(read, torch.tensor([0.0, 1.0], dtype=torch.float64), atol=1e-12)
    stretched = ROWS.double() + 4 * POSITIVE[:, None].double() * torch.tensor([3.0, -2.0, 0, 1.0, 0, 0])
    found = direction(stretched, POSITIVE, "pca", PENALTY).vector_D
    values, vectors = torch.linalg.eigh(torch.cov(stretched.T))
    principal = vectors[:, values.argmax()]
    apart = stretched[POSITIVE].mean(0) - stretched[~POSITIVE].mean(0)
    assert torch.allclose(found, (apart @ principal) * principal)
    assert found @ apart > 0
    found = direction(ROWS, POSITIVE, "logistic", PENALTY).vector_D
    weights = logistic(ROWS, POSITIVE.long(), 2, PENALTY).weight_CD[0]
    assert torch.allclose(
        torch.nn.functional.cosine_similarity(found, weights, dim=0), torch.ones((), dtype=torch.float64)
    )
    apart = (ROWS[POSITIVE].mean(0) - ROWS[~POSITIVE].mean(0)).double()
    assert torch.allclose(found @ found, apart @ found)


def test_labels_are_of_prompts_or_of_rows_and_a_prompt_is_held_out_whole() -> None:
    rows = CollectedRows(values_ND=torch.zeros(5, 2), prompts_N=torch.tensor([0, 0, 1, 2, 2]))
    assert labels_of(rows, [4, 5, 6]).tolist() == [4, 4, 5, 6, 6]
    assert labels_of(rows, [1, 2, 3, 4, 5]).tolist() == [1, 2, 3, 4, 5]
    with pytest.raises(UsageError, match="There are 4 labels for 3 prompts with 5 positions together"):
        labels_of(rows, [1, 2, 3, 4])
    rows = CollectedRows(values_ND=torch.zeros(40, 2), prompts_N=torch.arange(20).repeat_interleave(2))
    out = left_out(rows, 0.25, seed=1)
    assert out.sum() == 10
    assert torch.equal(out[::2], out[1::2])
    assert torch.equal(out, left_out(rows, 0.25, seed=1))
    assert not torch.equal(out, left_out(rows, 0.25, seed=2))


def test_a_fit_that_is_ended_has_the_best_weights_so_far() -> None:
    losses: list[float] = []

    def ended(done: int, of: int, loss: Tensor) -> bool:
        losses.append(float(loss))
        return done == 4

    def ended_at_the_best(done: int, of: int, loss: Tensor) -> bool:
        return done == 1 + losses.index(min(losses))

    whole, cut, best = (
        logistic(ROWS, POSITIVE.long(), 2, PENALTY, report) for report in (never, ended, ended_at_the_best)
    )
    assert len(losses) == 4
    assert torch.equal(cut.weight_CD, best.weight_CD)
    assert not torch.equal(cut.weight_CD, whole.weight_CD)


PLACE: dict[str, Any] = {"collection": "", "site": "z.0", "to": "", "seed": 0, "threads": 1, "penalty": PENALTY}
JOBS: tuple[AnyJob, ...] = (
    ProbeJob(**PLACE, labels=tuple(POSITIVE.double().tolist()), classes=("a", "b"), held_out=0.0),
    SteeringJob(**PLACE, positive=tuple(POSITIVE.tolist()), method="logistic"),
)


@pytest.mark.parametrize("job", JOBS, ids=lambda job: type(job).__name__)
def test_a_fit_that_is_ended_is_written_with_how_far_it_came(job: AnyJob, monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[tuple[set[str], object]] = []
    rows = CollectedRows(values_ND=ROWS, prompts_N=torch.arange(len(ROWS)))
    monkeypatch.setattr(running, "Activations", lambda folder: SimpleNamespace(model="tiny"))
    monkeypatch.setattr(running, "rows_of", lambda collection, site: rows)
    monkeypatch.setattr(running, "provenance", lambda *given, interrupted: interrupted)
    monkeypatch.setattr(
        running, "write_folder", lambda folder, files: written.append((set(files), files["provenance.json"]))
    )
    running.run(job, lambda done, of, loss: done == 3)
    running.run(job, never)
    (cut, far), (whole, none) = written
    assert cut == whole
    assert (far, none) == ({"done": 3, "of": MOST_STEPS}, None)
