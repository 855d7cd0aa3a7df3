"""SAEs that SAELens itself made and saved: an engine's features and reconstructions beside SAELens's own on the same
files. `make peers` installs it."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from dataclasses import fields
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from djinn_jupyter.modules.files import gemma_scope
from djinn_jupyter.modules.files.folder import read_folder
from djinn_jupyter.modules.files.saelens import ARCHITECTURES, CONFIG, METADATA
from djinn_jupyter.wire import requests as ask
from djinn_jupyter.wire.edits import Scale
from tests import saes
from tests.engine.added.adding import add
from tests.engine.desk import Desk, desk_of, tokens

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(find_spec("sae_lens") is None, reason="no SAELens here: make peers"),
]
PROMPT, FEATURES = tokens(12), 48
NORMED = ("none", "layer_norm", "constant_norm_rescale")
FORMS: list[tuple[str, dict[str, Any]]] = [
    *(("standard", {"normalize_activations": one}) for one in NORMED),
    ("standard", {"apply_b_dec_to_input": False}),
    *(("jumprelu", {"normalize_activations": one}) for one in NORMED),
    ("jumprelu", {"apply_b_dec_to_input": False}),
    ("topk", {"k": 5}),
    ("topk", {"k": 5, "rescale_acts_by_decoder_norm": True}),
    *(("gated", {"normalize_activations": one}) for one in NORMED),
]


@pytest.fixture
def desk() -> Iterator[Desk]:
    desk = desk_of("llama")
    desk.open()
    yield desk
    desk.close_all()
    for module in desk.ask(ask.ListAddedModules()).modules:
        desk.ask(ask.RemoveModule(name=module.name))


def drawn(architecture: str, width: int, **options: Any) -> Any:
    """Return SAELens's own module with random numbers, about a third of whose features are active."""
    from sae_lens.registry import get_sae_class

    kind, config = get_sae_class(architecture)
    made = kind(config(d_in=width, d_sae=FEATURES, **options))
    torch.manual_seed(0)
    with torch.no_grad():
        for name, parameter in made.named_parameters():
            scale = width**-0.5 if name.startswith("W_") else 0.2
            parameter.copy_(torch.randn_like(parameter) * scale)
            if name == "threshold":
                parameter.abs_()
    return made.eval().requires_grad_(False)


def saved(made: Any, folder: Path) -> Path:
    made.save_model(str(folder))
    return folder


def features_and_residual(desk: Desk) -> tuple[Tensor, Tensor]:
    """Stop where the features are read."""
    desk.stop_at("sae.4")
    desk.run(PROMPT)
    return desk.value("sae.4"), desk.value("resid_post.4")


@pytest.mark.parametrize(("architecture", "options"), FORMS, ids=str)
def test_features_are_saelenss(desk: Desk, tmp_path: Path, architecture: str, options: dict[str, Any]) -> None:
    theirs = drawn(architecture, desk.engine.anatomy.hidden_size, **options)
    add(desk, saved(theirs, tmp_path))
    features, residual = features_and_residual(desk)
    plain = theirs.encode(residual)
    assert 0 < (plain > 0).sum() < plain.numel()
    assert torch.equal(features > 0, plain > 0)
    torch.testing.assert_close(features, plain, rtol=1e-5, atol=1e-6)


def test_every_field_of_saelenss_configs_is_in_the_tables(tmp_path: Path) -> None:
    """Architectures that are not computed are refused by that name, with fields of their own."""
    from sae_lens.config import LanguageModelSAERunnerConfig, LoggingConfig
    from sae_lens.loading.pretrained_sae_loaders import LLM_METADATA_KEYS
    from sae_lens.registry import SAE_CLASS_REGISTRY, SAE_TRAINING_CLASS_REGISTRY

    read = {name: both[1] for name, both in SAE_CLASS_REGISTRY.items() if name in ARCHITECTURES}
    assert len(read) == len(ARCHITECTURES)
    trained = [both[1] for name, both in SAE_TRAINING_CLASS_REGISTRY.items() if name != "matching_pursuit"]
    for config in (*read.values(), *trained, LanguageModelSAERunnerConfig, LoggingConfig):
        assert CONFIG.unknown(one.name for one in fields(config)) in ([], ["sae"]), config
    assert not METADATA.unknown(LLM_METADATA_KEYS)
    for architecture in read:
        theirs = drawn(architecture, 32, **({"apply_b_dec_to_input": False} if "transcoder" in architecture else {}))
        assert read_folder(saved(theirs, tmp_path / architecture)).unknown == ()


def test_every_field_that_saelens_reads_of_gemma_scope_is_in_the_table() -> None:
    from sae_lens.loading import pretrained_sae_loaders as loaders

    source = inspect.getsource(loaders.get_gemma_3_config_from_hf)
    named = set(re.findall(r"""raw_cfg_dict(?:\.get\(|\[)["'](\w+)["']""", source))
    assert {"architecture", "model_name", "hf_hook_point_in"} <= named
    assert not gemma_scope.CONFIG.unknown(named)


@pytest.mark.parametrize("named", [{}, {"finetuning_scaling_factor": True}])
def test_a_scaling_factor_of_ones_is_dropped_as_by_saelens(desk: Desk, tmp_path: Path, named: dict[str, Any]) -> None:
    from sae_lens import SAE

    width = desk.engine.anatomy.hidden_size
    tensors = saes.drawn(width) | {"scaling_factor": torch.ones(saes.FEATURES)}
    folder = saes.saved(tmp_path, tensors, hook_point="blocks.4.hook_resid_post", device="cpu", **named)
    theirs = SAE.load_from_disk(folder)
    add(desk, folder)
    features, residual = features_and_residual(desk)
    torch.testing.assert_close(features, theirs.encode(residual), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("architecture", "options"), FORMS, ids=str)
def test_a_spliced_reconstruction_is_saelenss(
    desk: Desk, tmp_path: Path, architecture: str, options: dict[str, Any]
) -> None:
    theirs = drawn(architecture, desk.engine.anatomy.hidden_size, **options)
    add(desk, saved(theirs, tmp_path), error_term=False)
    _, residual = features_and_residual(desk)
    reconstructed = theirs(residual)
    desk.edit(Scale(factor=1.0))
    torch.testing.assert_close(desk.value("resid_post.4"), reconstructed, rtol=1e-5, atol=1e-5)
    assert float((reconstructed - residual).abs().max()) > 0.1
