"""A sweep goes over an SAE's features; each cell is a plain hook's, and features that stay are left out."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from djinn_jupyter.engine.system.arrays import to_tensor
from djinn_jupyter.errors import UnknownSite, UsageError
from djinn_jupyter.methods.datasets.request import Collect
from djinn_jupyter.methods.sweep.request import Estimate, Sweep
from djinn_jupyter.wire.edits import Zero
from tests import saes
from tests.engine.added.adding import add, opened
from tests.engine.desk import Desk, desk_of, tokens
from tests.families import build

LAYERS = 4
CORRUPTED = tokens(12)
CLEAN = (*CORRUPTED[:5], *tokens(12, seed=2)[5:])
A, B = 17, 42
METRIC = f"logit({A}) - logit({B})"


@pytest.fixture
def desk() -> Iterator[Desk]:
    yield from opened(desk_of("llama", layers=LAYERS))


@pytest.fixture
def tensors(desk: Desk, tmp_path: Path) -> saes.Tensors:
    tensors = saes.drawn(desk.engine.anatomy.hidden_size)
    add(desk, saes.saved(tmp_path, tensors), "resid_post.2")
    return tensors


def swept(desk: Desk, **fields: Any) -> Any:
    asked = {"corrupted": CORRUPTED, "site": "sae.2[*]", "over": ("neuron",), "metrics": (METRIC,)}
    return desk.ask(Sweep(session="a", **{**asked, **fields}))


@functools.cache
def plain() -> Any:
    return build("llama", layers=LAYERS)


def by_hand(prompt: tuple[int, ...], change: Any = lambda hidden: hidden) -> tuple[float, Tensor]:
    """Return the metric of the plain model with layer 2's output changed, and that output [T, D] unchanged."""
    model, seen = plain(), []

    def hook(module: Any, args: Any, output: Any) -> Any:
        hidden = output[0] if isinstance(output, tuple) else output
        seen.append(hidden[0].clone())
        made = change(hidden[0])[None]
        return (made, *output[1:]) if isinstance(output, tuple) else made

    with model.model.layers[2].register_forward_hook(hook), torch.inference_mode():
        logits = model(torch.tensor([prompt])).logits[0, -1]
    return float(logits[A] - logits[B]), seen[0]


@pytest.mark.parametrize("mode", ["fast", "exact"])
def test_each_feature_is_taken_out_as_by_hand(desk: Desk, tensors: saes.Tensors, mode: Any) -> None:
    reply = swept(desk, edit=Zero(), mode=mode)
    unchanged, residual = by_hand(CORRUPTED)
    features = saes.encode(residual, tensors)
    values = to_tensor(reply.measured[0].values)
    assert values.shape == (saes.FEATURES,)
    for unit in range(saes.FEATURES):
        part = features[:, unit, None] * tensors["W_dec"][unit]
        expected = by_hand(CORRUPTED, lambda hidden, part=part: hidden - part)[0] if part.any() else unchanged
        assert abs(float(values[unit]) - expected) < 1e-4, unit
    quiet = int((features == 0).all(0).sum())
    assert quiet > 0
    assert reply.computed == saes.FEATURES - quiet


def test_features_of_another_line_are_patched(desk: Desk, tensors: saes.Tensors) -> None:
    reply = swept(desk, clean=CLEAN, site="sae.2", over=("position",))
    values = to_tensor(reply.measured[0].values)
    before, clean = (saes.encode(by_hand(line)[1], tensors) for line in (CORRUPTED, CLEAN))
    difference = (clean - before) @ tensors["W_dec"]
    for position in range(12):
        alone = torch.zeros_like(difference)
        alone[position] = difference[position]
        expected = by_hand(CORRUPTED, lambda hidden, alone=alone: hidden + alone)[0]
        assert abs(float(values[position]) - expected) < 1e-4, position
    assert reply.computed == 7  # the first five positions have the same features


def test_features_of_many_prompts_are_collected(desk: Desk, tensors: saes.Tensors, tmp_path: Path) -> None:
    from safetensors.torch import load_file

    prompts = (CORRUPTED, CLEAN[:7])
    for mode in ("fast", "exact"):
        desk.open()
        reply = desk.ask(
            Collect(
                session="a",
                folder=str(tmp_path / mode),
                shard=0,
                first=0,
                last=True,
                prompts=prompts,
                sites=("sae.2", "sae.2[17]", "resid_post.2"),
                mode=mode,
            )
        )
        found = load_file(reply.path)
        torch.testing.assert_close(found["sae.2"], saes.encode(found["resid_post.2"], tensors), rtol=1e-4, atol=1e-5)
        assert torch.equal(found["sae.2[17]"], found["sae.2"][:, [17]])
        assert len(found["sae.2"]) == 19


def test_gradients_and_paths_are_of_the_models_own_points(desk: Desk, tensors: saes.Tensors) -> None:
    with pytest.raises(UsageError, match="Gradients estimate the model's own points"):
        swept(desk, clean=CLEAN, estimate=Estimate())
    with pytest.raises(UsageError, match="Paths lead from the model's own points"):
        swept(desk, clean=CLEAN, site="sae.2[3]", over=("position",), receivers=("logits",))
    for site in ("sae.3[*]", "sae", "sae.*[*]", "model.layers.2.mlp"):
        with pytest.raises((UnknownSite, UsageError)):
            swept(desk, edit=Zero(), site=site)
