"""The transcoders of all layers, added from one folder and spliced together, beside plain hooks on the same model."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import djinn_jupyter as dj
from djinn_jupyter.api.engine import RemoteEngine
from djinn_jupyter.errors import UsageError
from tests import transcoders
from tests.families import build
from tests.threads import one_thread

PROMPTS, LAYERS = [(9, 8, 7, 21, 22), (31, 7, 7, 5)], 3
Layers = dict[int, transcoders.Tensors]


@pytest.fixture(autouse=True)
def removed(engine: RemoteEngine) -> Iterator[None]:
    yield
    for name in {module.name for module in engine.added_modules()}:
        engine.remove_module(name)


def plain_losses(layers: Layers, *, of_residual: bool = False) -> np.ndarray[Any, Any]:
    """Return the losses of the plain model whose MLPs make what all transcoders at or below their layers write of what
    an MLP is given, or of the residual before it."""
    with one_thread(), torch.inference_mode():
        model, features, read = build("llama", layers=LAYERS), {}, {}

        def reading(layer: int) -> Any:
            return lambda module, given: read.update({layer: given[0][0]})

        def hook(layer: int) -> Any:
            def made(module: Any, given: tuple[Tensor], output: Tensor) -> Tensor:
                features[layer] = transcoders.encode(read[layer], layers[layer])
                own = layers[layer]["W_dec"]
                skipped = read[layer] @ layers[layer]["W_skip"] if "W_skip" in layers[layer] else 0.0
                if own.ndim == 2:
                    return (features[layer] @ own + layers[layer]["b_dec"])[None]
                parts = [features[below] @ layers[below]["W_dec"][:, layer - below] for below in range(layer + 1)]
                return (torch.stack(parts).sum(0) + layers[layer]["b_dec"] + skipped)[None]

            return made

        for number, block in enumerate(model.model.layers):
            (block.post_attention_layernorm if of_residual else block.mlp).register_forward_pre_hook(reading(number))
            block.mlp.register_forward_hook(hook(number))
        found = []
        for prompt in PROMPTS:
            logits = model(torch.tensor([prompt])).logits[0].log_softmax(-1)
            found.append(-logits[:-1].gather(1, torch.tensor(prompt[1:])[:, None])[:, 0])
        return torch.cat(found).numpy()


@pytest.mark.parametrize("error_term", [True, False])
def test_a_cross_layer_transcoder_is_spliced_whole(engine: RemoteEngine, tmp_path: Path, error_term: bool) -> None:
    layers = transcoders.drawn_across(engine.description.hidden_size, LAYERS)
    folder = transcoders.across_saved(tmp_path, layers)
    added = engine.add_transcoders("clt", folder, error_term=error_term)
    assert [(one.site, one.at, one.writes) for one in added] == [
        (f"clt.{layer}", f"mlp_in.{layer}", f"mlp_out.{layer}") for layer in range(LAYERS)
    ]
    found = dj.splice(engine, "clt", PROMPTS)
    assert np.allclose(found.spliced.values, plain_losses(layers), atol=1e-4)
    assert found.at == "mlp_out.0, mlp_out.1, mlp_out.2"
    assert found.model.loss != found.spliced.loss != found.zeroed.loss
    assert [one.site for one in engine.added_modules()] == ["clt.0", "clt.1", "clt.2"]
    with pytest.raises(UsageError, match=r"clt\.1 is a layer of a cross-layer transcoder.* splice them all, as clt\."):
        dj.splice(engine, "clt.1", PROMPTS)


def test_one_that_reads_the_residual_and_has_a_skip_is_spliced_by_its_files(
    engine: RemoteEngine, tmp_path: Path
) -> None:
    layers = transcoders.drawn_across(engine.description.hidden_size, LAYERS, skip=True)
    folder = transcoders.across_saved(tmp_path, layers, point="resid_mid", written="hook_mlp_out")
    added = engine.add_transcoders("clt", folder)
    assert [(one.at, one.writes, one.note) for one in added] == [
        (f"resid_mid.{layer}", f"mlp_out.{layer}", None) for layer in range(LAYERS)
    ]
    found = dj.splice(engine, "clt", PROMPTS)
    assert np.allclose(found.spliced.values, plain_losses(layers, of_residual=True), atol=1e-4)


def test_transcoders_of_several_layers_are_spliced_together_or_alone(engine: RemoteEngine, tmp_path: Path) -> None:
    width = engine.description.hidden_size
    layers = {layer: transcoders.drawn(width, seed=layer) for layer in range(LAYERS)}
    engine.add_transcoders("tc", transcoders.set_saved(tmp_path, layers))
    found = dj.splice(engine, "tc", PROMPTS)
    assert np.allclose(found.spliced.values, plain_losses(layers), atol=1e-4)
    assert dj.splice(engine, "tc.1", PROMPTS).at == "mlp_out.1"


def test_one_layer_of_a_folder_is_added_by_its_point(engine: RemoteEngine, tmp_path: Path) -> None:
    layers = transcoders.drawn_across(engine.description.hidden_size, LAYERS)
    folder = transcoders.across_saved(tmp_path, layers, config=False)
    with pytest.raises(UsageError, match=r"has transcoders of 3 layers: add them all by engine\.add_transcoders"):
        engine.add_module("clt", folder)
    with pytest.raises(UsageError, match="does not say where its module was trained"):
        engine.add_transcoders("clt", folder)
    read = engine.add_module("clt", folder, at="resid_pre.1")
    assert read.why_not_edited == "a transcoder is put back where it reads mlp_in.1 or resid_mid.1"
    with pytest.raises(UsageError, match=r"clt\.1 cannot be spliced: a transcoder is put back where"):
        dj.splice(engine, "clt", PROMPTS)
