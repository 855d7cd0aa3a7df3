"""An SAE that was trained on TransformerLens's centered weights reads the values that these make."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from djinn_jupyter.errors import UsageError
from djinn_jupyter.wire.edits import Scale
from tests import saes
from tests.engine.added.adding import add, opened
from tests.engine.desk import Desk, desk_of, tokens
from tests.families import build

PROMPT = tokens(12)
CENTERED = {"hook_name": "blocks.4.hook_resid_post", "model_from_pretrained_kwargs": {"center_writing_weights": True}}
NORMED = ("none", "layer_norm", "constant_norm_rescale")


@pytest.fixture
def desk() -> Iterator[Desk]:
    yield from opened(desk_of("gpt2"))


@torch.no_grad()
def centered_residual() -> Tensor:
    """Return resid_post.4 of a GPT-2 whose writing weights are centered, as TransformerLens centers them."""
    model: Any = build("gpt2").eval()
    writing = [model.transformer.wte.weight, model.transformer.wpe.weight]
    for layer in model.transformer.h:
        for last in (layer.attn.c_proj, layer.mlp.c_proj):
            writing += [last.weight, last.bias]
    for weight in writing:
        weight -= weight.mean(-1, keepdim=True)
    return model(torch.tensor([PROMPT]), output_hidden_states=True).hidden_states[5][0]


@pytest.mark.parametrize("normed", NORMED)
def test_features_and_reconstructions_are_those_of_centered_weights(desk: Desk, tmp_path: Path, normed: str) -> None:
    tensors = saes.drawn(desk.engine.anatomy.hidden_size)
    folder = saes.saved(tmp_path, tensors, normalize_activations=normed, metadata=CENTERED)
    add(desk, folder, error_term=False)
    desk.stop_at("sae.4")
    desk.run(PROMPT)
    features, residual, x = desk.value("sae.4"), desk.value("resid_post.4"), centered_residual()
    assert float((residual - x).abs().max()) > 0.01
    plain = saes.encode(x, tensors, normalize_activations=normed)
    assert 0 < (plain > 0).sum() < plain.numel()
    torch.testing.assert_close(features, plain, rtol=1e-4, atol=1e-5)
    desk.edit(Scale(factor=1.0))
    made = saes.decode(x, plain, tensors, normalize_activations=normed) + residual.mean(-1, keepdim=True)
    torch.testing.assert_close(desk.value("resid_post.4"), made, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("family", ["llama", "bloom"])
def test_a_model_that_is_not_centered_so_is_refused(family: str, tmp_path: Path) -> None:
    """RMS norms do not ignore a mean, and BLOOM norms its embeddings before the first layer."""
    desk = desk_of(family)
    folder = saes.saved(tmp_path, saes.drawn(desk.engine.anatomy.hidden_size), metadata=CENTERED)
    with pytest.raises(UsageError, match="have center_writing_weights, which is computed here for models whose"):
        add(desk, folder)
