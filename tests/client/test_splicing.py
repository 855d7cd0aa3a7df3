"""`dj.splice` beside plain hooks on the same model: losses with a reconstruction, or with zeros, in place of it."""

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
from djinn_jupyter.errors import UnknownSite, UsageError
from tests import saes
from tests.families import build
from tests.threads import one_thread

PROMPTS = [(9, 8, 7, 21, 22), (31, 7, 7, 5), (4, 4, 9)]


@pytest.fixture
def sae(engine: RemoteEngine, tmp_path: Path) -> Iterator[saes.Tensors]:
    tensors = saes.drawn(engine.description.hidden_size)
    engine.add_module("sae", saes.saved(tmp_path / "sae", tensors), at="resid_post.1")
    yield tensors
    for module in engine.added_modules():
        engine.remove_module(module.site)


def plain_losses(change: Any) -> np.ndarray[Any, Any]:
    """Return the losses of the plain model whose layer 1 gives on what `change` makes of its output."""
    with one_thread(), torch.inference_mode():
        model = build("llama", layers=3)

        def hook(module: Any, given: Any, output: Any) -> Any:
            hidden = output[0] if isinstance(output, tuple) else output
            changed = change(hidden[0])[None]
            return (changed, *output[1:]) if isinstance(output, tuple) else changed

        model.model.layers[1].register_forward_hook(hook)
        found = []
        for prompt in PROMPTS:
            logits = model(torch.tensor([prompt])).logits[0].log_softmax(-1)
            found.append(-logits[:-1].gather(1, torch.tensor(prompt[1:])[:, None])[:, 0])
        return torch.cat(found).numpy()


@pytest.mark.parametrize("error_term", [True, False])
def test_losses_are_those_of_plain_hooks(
    engine: RemoteEngine, sae: saes.Tensors, tmp_path: Path, error_term: bool
) -> None:
    def reconstruct(x: Tensor) -> Tensor:
        return saes.encode(x, sae) @ sae["W_dec"] + sae["b_dec"]

    engine.remove_module("sae")
    engine.add_module("sae", tmp_path / "sae", at="resid_post.1", error_term=error_term)
    found = dj.splice(engine, "sae.1", PROMPTS)
    assert np.allclose(found.model.values, plain_losses(lambda x: x), atol=1e-5)
    assert np.allclose(found.spliced.values, plain_losses(reconstruct), atol=1e-4)
    assert np.allclose(found.zeroed.values, plain_losses(torch.zeros_like), atol=1e-5)
    lost = found.zeroed.loss - found.model.loss
    assert found.recovered == pytest.approx((found.zeroed.loss - found.spliced.loss) / lost)
    assert repr(found).startswith(f"sae.1 in place of resid_post.1: loss {found.spliced.loss:.4f}, of the model ")
    assert [one.site for one in engine.added_modules()] == ["sae.1"]
    assert engine.sessions() == ()


def test_what_cannot_be_spliced_is_one_sentence(engine: RemoteEngine, sae: saes.Tensors, tmp_path: Path) -> None:
    with pytest.raises(UnknownSite, match=r"no added module sae\.2; there are: sae\.1\."):
        dj.splice(engine, "sae.2", PROMPTS)
    acts = engine.collect(PROMPTS, "resid_post.1", to=tmp_path / "acts", positions=-1)
    probe = dj.train_probe(acts, ["a", "b", "a"], to=tmp_path / "probe", held_out=0)
    engine.add_module("told", probe.folder)
    with pytest.raises(UsageError, match=r"told\.1 cannot be spliced: "):
        dj.splice(engine, "told.1", PROMPTS)
    saes.saved(tmp_path / "sae", saes.drawn(engine.description.hidden_size, seed=1))
    with pytest.raises(UsageError, match=r"has other files now than sae\.1 was added from"):
        dj.splice(engine, "sae.1", PROMPTS)
    assert sorted(one.site for one in engine.added_modules()) == ["sae.1", "told.1"]


def test_a_transcoder_stands_in_place_of_what_its_mlp_makes(engine: RemoteEngine, tmp_path: Path) -> None:
    tensors = saes.drawn(engine.description.hidden_size)
    engine.add_module("trans", saes.saved(tmp_path / "trans", tensors, "transcoder"), at="mlp_in.1")
    found = dj.splice(engine, "trans.1", PROMPTS)
    engine.remove_module("trans")
    session = engine.session("zeroed", fresh=True)
    session.steer("mlp_out.1", dj.zero())
    zeroed = session.loss(PROMPTS)
    session.close()
    assert found.at == "mlp_out.1"
    assert all(np.array_equal(one, other) for one, other in zip(found.zeroed, zeroed, strict=True))
    assert found.spliced.loss != found.model.loss
