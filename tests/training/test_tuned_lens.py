"""Tuned lenses on residuals whose way to the last one is known, and the head by which they are tuned."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch
from torch import Tensor

from djinn_jupyter.modules.training.jobs import TunedLensJob
from djinn_jupyter.modules.training.running import Head, divergence, train_lens
from tests.threads import one_thread

WIDTH, TOKENS, ROWS = 12, 30, 2000
DRAW = torch.Generator().manual_seed(4)
X = 5 * torch.randn(ROWS, WIDTH, generator=DRAW)
LAST = X + X @ (0.5 * torch.randn(WIDTH, WIDTH, generator=DRAW)).T + 3 * torch.randn(WIDTH, generator=DRAW)
MATRIX = torch.randn(WIDTH, TOKENS, generator=DRAW)
OUT = torch.arange(ROWS) % 5 == 0


@pytest.fixture
def job(tmp_path: Path) -> TunedLensJob:
    path = tmp_path / "head.npz"
    np.savez(path, matrix=MATRIX.double().numpy(), offset=np.zeros(TOKENS))
    return TunedLensJob(
        collection="", site="resid_post.1", to="", seed=0, threads=1, last="resid_post.2", head=str(path),
        norm="rms", epsilon=1e-5, steps=600, batch=128, rate=0.02, held_out=0.2,
    )  # fmt: skip


def plain_divergence(said: Tensor, last: Tensor) -> float:
    """Return the divergence as torch's own functions have it."""
    own, other = (torch.nn.functional.rms_norm(x, (WIDTH,), eps=1e-5) @ MATRIX for x in (last.float(), said.float()))
    return float(
        torch.nn.functional.kl_div(other.log_softmax(-1), own.log_softmax(-1), reduction="batchmean", log_target=True)
    )


def test_a_planted_translation_is_found(job: TunedLensJob) -> None:
    with one_thread():
        tensors, figures = train_lens(X, LAST, OUT, job, lambda done, of, loss: None)
    assert figures["divergence_of_logit_lens"] == pytest.approx(plain_divergence(X[OUT], LAST[OUT]), rel=1e-4)
    translated = X[OUT] + X[OUT] @ tensors["weight"].T + tensors["bias"]
    assert figures["divergence"] == pytest.approx(plain_divergence(translated, LAST[OUT]), rel=1e-3)
    assert figures["divergence"] < figures["divergence_of_logit_lens"] / 20


def test_a_seed_has_its_bits_and_no_step_is_the_logit_lens(job: TunedLensJob) -> None:
    short = msgspec.structs.replace(job, steps=20)
    with one_thread():
        first, again, other = (
            train_lens(X, LAST, OUT, msgspec.structs.replace(short, seed=seed), lambda done, of, loss: None)
            for seed in (1, 1, 2)
        )
    assert all(torch.equal(first[0][name], again[0][name]) for name in first[0])
    assert not torch.equal(first[0]["weight"], other[0]["weight"])
    head = Head.of(job)
    assert float(divergence(head, LAST, LAST)) == 0.0
