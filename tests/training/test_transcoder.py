"""Training of transcoders on rows that a planted map makes of others."""

from __future__ import annotations

import torch
from torch import Tensor

from djinn_jupyter.modules.training.jobs import TranscoderJob
from djinn_jupyter.modules.training.sae import train_transcoder
from tests.threads import one_thread

WIDTH, MADE, PLANTED, ACTIVE = 24, 20, 32, 3
JOB = TranscoderJob(
    collection="", site="mlp_in.1", written="mlp_out.1", to="", seed=0, threads=1,
    features=96, active=ACTIVE, steps=1000, batch=128, rate=0.003,
)  # fmt: skip


def planted(rows: int = 12_000) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the directions that are read and those that are written for each, and rows of both."""
    draw = torch.Generator().manual_seed(5)
    read, written = (
        torch.nn.functional.normalize(torch.randn(PLANTED, width, generator=draw), dim=1) for width in (WIDTH, MADE)
    )
    chosen = torch.rand(rows, PLANTED, generator=draw).argsort(1)[:, :ACTIVE]
    strengths = torch.zeros(rows, PLANTED).scatter(1, chosen, 1 + torch.rand(rows, ACTIVE, generator=draw))
    return read, written, 5.0 * strengths @ read, strengths @ written + 0.5


def trained(steps: int = JOB.steps, seed: int = 0) -> tuple[dict[str, Tensor], dict[str, float]]:
    import msgspec

    _, _, given, made = planted()
    with one_thread():
        return train_transcoder(given, made, msgspec.structs.replace(JOB, steps=steps, seed=seed), lambda *_: None)


def test_what_is_written_for_each_planted_direction_is_found() -> None:
    tensors, figures = trained()
    _, written, given, made = planted()
    likeness = written @ torch.nn.functional.normalize(tensors["W_dec"], dim=1).T
    assert likeness.max(1).values.mean() > 0.9
    assert figures["explained_variance"] > 0.9
    assert abs(figures["active"] - ACTIVE) < 0.05
    before = (given @ tensors["W_enc"] + tensors["b_enc"]).relu()
    again = before * (before > tensors["threshold"]) @ tensors["W_dec"] + tensors["b_dec"]
    assert (made - again).square().sum() < 0.1 * (made - made.mean(0)).square().sum()


def test_a_seed_has_its_bits() -> None:
    one, same, other = trained(steps=20), trained(steps=20), trained(steps=20, seed=1)
    assert all(torch.equal(one[0][name], same[0][name]) for name in one[0])
    assert not torch.equal(one[0]["W_enc"], other[0]["W_enc"])
