"""Modules from folders here: added, read and spliced, beside plain hooks on the same model."""

from __future__ import annotations

from collections.abc import Callable, Iterator
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

PROMPT = [9, 8, 7, 21, 22]


@pytest.fixture
def sae(engine: RemoteEngine, tmp_path: Path) -> Iterator[saes.Tensors]:
    tensors = saes.drawn(engine.description.hidden_size)
    engine.add_module("sae", saes.saved(tmp_path / "sae", tensors), at="resid_post.1")
    yield tensors
    for session in engine.sessions():
        engine.session(session.name, join=True, fresh=True, force=True)
    for name in {module.name for module in engine.added_modules()}:
        engine.remove_module(name)


def test_a_feature_is_a_site(engine: RemoteEngine, sae: saes.Tensors) -> None:
    (module,) = engine.added_modules()
    assert (module.site, module.features) == ("sae.1", saes.FEATURES)
    session = engine.session("main", fresh=True)
    session.breakpoint("sae.1[17]", when="value >= 0")
    stop = session.run(PROMPT)
    assert (stop.site, stop.shape) == ("sae.1[17]", (5, 1))
    features, residual = np.asarray(session.inspect("sae.1")), np.asarray(session.inspect("resid_post.1"))
    plain = np.maximum((residual - sae["b_dec"].numpy()) @ sae["W_enc"].numpy() + sae["b_enc"].numpy(), 0)
    assert np.allclose(features, plain, rtol=1e-4, atol=1e-5)
    session.edit(dj.scale(2.0))
    session.resume(free=True)
    grid = dj.sweep(engine, corrupted=PROMPT, site="sae.1[*]", edit=dj.zero(), metric="logit(5)")
    assert grid.values.shape == (saes.FEATURES,)


WORK: dict[str, Callable[[RemoteEngine, Path], Any]] = {
    "grid": lambda engine, folder: dj.sweep(
        engine, corrupted=PROMPT, site="sae.1[*]", edit=dj.add(2.0), metric="logit(5)", mode="exact"
    ),
    "collection": lambda engine, folder: engine.collect([PROMPT], "sae.1", to=folder / "acts"),
    "losses under a rule": lambda engine, folder: ruled(engine).loss([PROMPT]),
}


def ruled(engine: RemoteEngine) -> Any:
    session = engine.session("main", fresh=True)
    session.steer("sae.1[3]", dj.scale(3.0))
    return session


@pytest.mark.parametrize("work", WORK)
def test_a_result_names_the_module_that_it_was_computed_with(
    engine: RemoteEngine, sae: saes.Tensors, tmp_path: Path, work: str
) -> None:
    found = WORK[work](engine, tmp_path)
    for session in engine.sessions():
        engine.reach(session.name).close()
    assert dj.reproduce(engine, found).same
    engine.remove_module("sae")
    with pytest.raises(UsageError, match=r"^It was computed with the module sae of .* at resid_post.1, which is"):
        dj.reproduce(engine, found)
    engine.add_module("sae", other_sae(engine, tmp_path), at="resid_post.1")
    with pytest.raises(UsageError, match=r"which is not added here as it was; add it first \(%djinn_add_module sae /"):
        dj.reproduce(engine, found)


def test_nothing_goes_on_from_what_another_module_computed(
    engine: RemoteEngine, sae: saes.Tensors, tmp_path: Path
) -> None:
    asked: dict[str, Any] = {"corrupted": PROMPT, "site": "sae.1[*]", "edit": dj.zero(), "metric": "logit(5)"}
    grid = dj.sweep(engine, **asked)
    engine.collect([PROMPT], "sae.1", to=tmp_path / "acts")
    engine.remove_module("sae")
    engine.add_module("sae", other_sae(engine, tmp_path), at="resid_post.1")
    with pytest.raises(UsageError, match="another"):
        dj.sweep(engine, **asked, so_far=grid)
    with pytest.raises(UsageError, match=r"is of another collection \(modules: "):
        engine.collect([PROMPT], "sae.1", to=tmp_path / "acts")


def other_sae(engine: RemoteEngine, folder: Path) -> Path:
    return saes.saved(folder / "other", saes.drawn(engine.description.hidden_size, seed=1))


def test_folders_that_are_none_or_of_another_model_are_refused(engine: RemoteEngine, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="names no folder"):
        engine.add_module("sae", " ", at="resid_post.1")
    with pytest.raises(UsageError, match="There is no folder"):
        engine.add_module("sae", tmp_path / "missing", at="resid_post.1")
    saes.saved(tmp_path, saes.drawn(engine.description.hidden_size))
    with pytest.raises(UsageError, match="does not say where its module was trained"):
        engine.add_module("sae", tmp_path)
    with pytest.raises(UsageError, match="small letters, digits"):
        engine.add_module("My SAE", tmp_path, at="resid_post.1")
    with pytest.raises(UnknownSite, match="no added module sae; there are none"):
        engine.remove_module("sae")
    assert engine.sessions() == ()
    for named in ["gpt2-small"]:
        folder = saes.saved(tmp_path, saes.drawn(engine.description.hidden_size), metadata={"model_name": named})
        with pytest.raises(UsageError, match=rf"has model_name '{named}', and this engine serves .*LlamaForCausalLM"):
            engine.add_module("sae", folder, at="resid_post.1")
        assert not engine.added_modules()
    drawn, own = saes.drawn(engine.description.hidden_size), engine.description.name
    said: dict[str, Any] = {"of_tomorrow": None, "metadata": {"model_name": own, "hook_name": "resid_post.0"}}
    told = engine.add_module("sae", saes.saved(tmp_path / "one", drawn, **said), at="resid_post.1").note
    engine.remove_module("sae")
    assert told == (
        "its files say that it was trained at resid_post.0; its files also have of_tomorrow, unknown here and without "
        "a value"
    )
    assert engine.add_module("sae", saes.saved(tmp_path / "two", drawn), at="resid_post.1").note is None
    engine.remove_module("sae")


PROMPTS = [(9, 8, 7, 21, 22), (31, 7, 7, 5), (4, 4, 9)]


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


@pytest.mark.usefixtures("trains_here")
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
