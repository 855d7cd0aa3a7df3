"""Training of SAEs on rows whose features are known, because they were planted."""

from __future__ import annotations

import msgspec
import pytest
import torch
from torch import Tensor

from djinn_jupyter.modules.training import sae
from djinn_jupyter.modules.training.jobs import SaeJob
from djinn_jupyter.modules.training.sae import train_sae
from tests.threads import one_thread

WIDTH, PLANTED, ACTIVE = 24, 40, 3
Found = tuple[dict[str, Tensor], dict[str, float], list[float]]
JOB = SaeJob(
    collection="", site="resid_post.1", to="", seed=0, threads=1,
    features=96, active=ACTIVE, steps=1000, batch=128, rate=0.003,
)  # fmt: skip


def planted(rows: int = 12_000, directions_there: int = PLANTED) -> tuple[Tensor, Tensor]:
    """Return directions, and rows that are sums of three of them, each once to twice as long, beside an offset."""
    draw = torch.Generator().manual_seed(5)
    directions = torch.nn.functional.normalize(torch.randn(directions_there, WIDTH, generator=draw), dim=1)
    chosen = torch.rand(rows, directions_there, generator=draw).argsort(1)[:, :ACTIVE]
    strengths = torch.zeros(rows, directions_there).scatter(1, chosen, 1 + torch.rand(rows, ACTIVE, generator=draw))
    return directions, strengths @ directions + 0.5


def trained(rows: Tensor, **changed: float) -> Found:
    losses: list[float] = []
    with one_thread():
        job = msgspec.structs.replace(JOB, **changed)
        tensors, figures = train_sae(rows, job, lambda done, of, loss: losses.append(float(loss.detach())))
    return tensors, figures, losses


@pytest.fixture(scope="module")
def found() -> Found:
    return trained(planted()[1])


def test_planted_directions_are_found(found: Found) -> None:
    directions, _ = planted()
    likeness = directions @ torch.nn.functional.normalize(found[0]["W_dec"], dim=1).T
    nearest = likeness.max(1).values
    assert nearest.mean() > 0.95
    assert (nearest > 0.9).float().mean() > 0.85


def test_the_loss_falls_and_the_variance_is_explained(
    found: Found,
) -> None:
    tensors, figures, losses = found
    assert losses[-1] < losses[0] / 10
    assert figures["explained_variance"] > 0.9
    assert figures["active"] == pytest.approx(ACTIVE, abs=0.01)
    fresh = planted(14_000)[1][12_000:]
    before = ((fresh - tensors["b_dec"]) @ tensors["W_enc"] + tensors["b_enc"]).relu()
    again = before * (before > tensors["threshold"]) @ tensors["W_dec"] + tensors["b_dec"]
    assert (fresh - again).square().sum() < 0.1 * (fresh - fresh.mean(0)).square().sum()


def test_a_seed_has_its_bits() -> None:
    rows = planted(2000)[1]
    first, again, other = trained(rows, steps=30), trained(rows, steps=30), trained(rows, steps=30, seed=1)
    assert all(torch.equal(first[0][name], again[0][name]) for name in first[0])
    assert first[1:] == again[1:]
    assert not torch.equal(first[0]["W_enc"], other[0]["W_enc"])


def test_features_that_died_come_back_by_their_own_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = planted(directions_there=160)[1]
    _, figures, _ = trained(rows, features=160, steps=600, rate=0.01)
    monkeypatch.setattr(sae, "DEAD_SHARE", 0.0)
    _, without, _ = trained(rows, features=160, steps=600, rate=0.01)
    assert figures["never_active"] < 0.75 * without["never_active"]
