"""Folders of Gemma Scope and of circuit-tracer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from djinn_jupyter.errors import UsageError
from djinn_jupyter.modules.files.circuit_tracer import layers_in
from djinn_jupyter.modules.files.files import ModuleFolder
from djinn_jupyter.modules.files.folder import read_folder
from tests import gemma_scopes, saes, transcoders
from tests.gemma_scopes import BEFORE_MLP, BEHIND_MLP

WIDTH = 16


def numbers(found: ModuleFolder) -> dict[str, tuple[tuple[int, ...], bytes]]:
    return {name: (array.shape, bytes(array.data)) for name, array in found.tensors.items()}


@pytest.mark.parametrize(
    ("read", "site"),
    [
        ("model.layers.17.output", "resid_post.17"),
        ("model.language_model.layers.17.output", "resid_post.17"),
        ("model.layers.3.self_attn.o_proj.input", "z.3"),
        ("model.layers.3.post_feedforward_layernorm.output", "mlp_out_post.3"),
        ("model.layers.3.nowhere", "model.layers.3.nowhere"),
    ],
)
def test_an_sae_is_that_which_saelens_saves(tmp_path: Path, read: str, site: str) -> None:
    tensors = saes.drawn(WIDTH, "jumprelu")
    found = read_folder(gemma_scopes.saved(tmp_path / "gemma", tensors, read=read))
    same = read_folder(saes.saved(tmp_path / "same", tensors, "jumprelu", apply_b_dec_to_input=False, hook_name=site))
    assert (found.form, numbers(found)) == (same.form, numbers(same))
    assert found.form.trained_at == site


def test_an_sae_that_names_the_point_it_reads_twice_is_an_sae(tmp_path: Path) -> None:
    said: dict[str, Any] = {"hf_hook_point_out": BEHIND_MLP, "type": "sae", "width": saes.FEATURES, "l0": 7}
    found = read_folder(gemma_scopes.saved(tmp_path, saes.drawn(WIDTH, "jumprelu"), read=BEHIND_MLP, **said))
    assert (found.form.kind, found.form.trained_at, found.model) == ("sae", "mlp_out_post.1", "gemma-v3-1b-pt")


@pytest.mark.parametrize("dtype", [torch.bfloat16])
def test_a_transcoder_with_an_affine_connection_is_that_which_saelens_saves(tmp_path: Path, dtype: Any) -> None:
    tensors = {name: one.to(dtype) for name, one in saes.drawn(WIDTH, "jumprelu").items()}
    skip_IO = gemma_scopes.skip(WIDTH).to(dtype)
    declared: dict[str, Any] = {"hf_hook_point_out": BEHIND_MLP, "affine_connection": True}
    found = read_folder(gemma_scopes.saved(tmp_path / "g", tensors, read=BEFORE_MLP, skip_IO=skip_IO, **declared))
    hooks = {"hook_name": "mlp_in.1", "hook_name_out": "blocks.1.hook_mlp_out", "dtype": str(dtype)}
    with_skip = {**tensors, "W_skip": skip_IO.T}
    same = read_folder(saes.saved(tmp_path / "same", with_skip, "jumprelu_skip_transcoder", **hooks))
    assert (found.form, numbers(found)) == (same.form, numbers(same))


def test_a_transcoder_that_saelens_saved_reads_behind_the_norm(tmp_path: Path) -> None:
    """SAELens writes a hook before the norm, and beside it the place where Gemma Scope says that it reads."""
    said = {"hook_name": "blocks.1.hook_mlp_in", "hook_name_out": "blocks.1.hook_mlp_out", "hf_hook_name": BEFORE_MLP}
    tensors = saes.drawn(WIDTH, "jumprelu")
    found = read_folder(saes.saved(tmp_path, tensors, "jumprelu_transcoder", metadata=said))
    assert found.form.trained_at == "mlp_in.1"
    del said["hf_hook_name"]
    found = read_folder(saes.saved(tmp_path, tensors, "jumprelu_transcoder", metadata=said))
    assert found.form.trained_at == "blocks.1.hook_mlp_in"


def test_other_files_of_gemma_scope_are_refused_by_name(tmp_path: Path) -> None:
    tensors = saes.drawn(WIDTH, "jumprelu")
    np.savez(made(tmp_path / "first") / "params.npz", **{name: one.numpy() for name, one in tensors.items()})
    made(tmp_path / "across").joinpath("params_layer_0.safetensors").write_bytes(b"")
    bare = gemma_scopes.saved(tmp_path / "bare", tensors, read=BEFORE_MLP)
    (bare / "config.json").unlink()
    for folder, said in (
        ("first", r"first has params\.npz of Gemma Scope, which says nothing of its form: load it by SAELens"),
        ("across", "across has a crosscoder or cross-layer transcoder of Gemma Scope 2, which is not computed here"),
        ("bare", r"bare has params\.safetensors of Gemma Scope 2 and no config\.json beside it"),
    ):
        with pytest.raises(UsageError, match=said):
            read_folder(tmp_path / folder)


@pytest.mark.parametrize(
    ("declared", "said"),
    [
        ({"architecture": "topk"}, "of architecture 'topk', which is not computed here; there is jump_relu"),
        ({"hf_hook_point_out": "somewhere"}, "hf_hook_point_out 'somewhere', which is not computed here"),
        ({"affine_connection": True}, r"affine_connection True, and params\.safetensors has no affine_skip_connection"),
        ({"width": 47}, r"has width 47, and w_enc has shape \[16, 48\]"),
        ({"type": "transcoder"}, "has type 'transcoder', which is not computed here with hf_hook_point_out None"),
        ({"hf_hook_point_out": "model.layers.1.output"}, "hf_hook_point_out 'model.layers.1.output', which is not"),
    ],
)
def test_a_declaration_that_is_not_computed_is_refused(tmp_path: Path, declared: dict[str, Any], said: str) -> None:
    folder = gemma_scopes.saved(tmp_path, saes.drawn(WIDTH, "jumprelu"), read=BEFORE_MLP, **declared)
    with pytest.raises(UsageError, match=said):
        read_folder(folder)


@pytest.mark.parametrize("text", [b"", b"[]", b"{", b"\xff"])
def test_a_hostile_declaration_is_refused(tmp_path: Path, text: bytes) -> None:
    folder = gemma_scopes.saved(tmp_path, saes.drawn(WIDTH, "jumprelu"), read=BEFORE_MLP)
    (folder / "config.json").write_bytes(text)
    with pytest.raises(UsageError, match=r"config\.json cannot be read as a JSON object"):
        read_folder(folder)


def made(folder: Path) -> Path:
    folder.mkdir()
    return folder


READ_WIDTH, LAYERS = 16, 3
TENSORS = transcoders.drawn(READ_WIDTH, skip=True)


def test_a_file_of_one_layer_is_read_to_the_bit_and_says_where_it_reads_and_writes(tmp_path: Path) -> None:
    folder = transcoders.set_saved(tmp_path, {0: TENSORS, 10: transcoders.drawn(READ_WIDTH)})
    found = read_folder(folder / "layer_0.safetensors")
    assert (found.form.kind, found.form.activation, found.form.skip) == ("transcoder", "relu", True)
    assert (found.form.trained_at, found.form.written_at) == ("blocks.0.mlp.hook_in", "blocks.0.mlp.hook_out")
    for name, tensor in TENSORS.items():
        assert found.tensors[name].shape == tuple(tensor.shape)
        assert bytes(found.tensors[name].data) == tensor.numpy().tobytes()
    assert read_folder(folder, 0).digest == found.digest != read_folder(folder, 10).digest
    assert layers_in(folder) == [0, 10]
    assert not read_folder(folder, 10).form.skip


def test_a_threshold_makes_a_jumprelu_and_the_dtype_is_the_files(tmp_path: Path) -> None:
    tensors = transcoders.drawn(READ_WIDTH) | {"activation_function.threshold": torch.ones(transcoders.FEATURES)}
    half = {name: tensor.bfloat16() for name, tensor in tensors.items()}
    form = read_folder(transcoders.set_saved(tmp_path, {4: half}, config=False), 4).form
    assert (form.activation, form.dtype, form.trained_at) == ("jumprelu", "bfloat16", None)


def test_a_layer_of_a_cross_layer_transcoder_is_a_module(tmp_path: Path) -> None:
    layers = transcoders.drawn_across(READ_WIDTH, LAYERS)
    folder = transcoders.across_saved(tmp_path, layers)
    found = read_folder(folder, 1)
    assert (found.form.kind, found.form.trained_at) == ("cross_layer_transcoder", "blocks.1.mlp.hook_in")
    assert bytes(found.tensors["W_dec"].data) == layers[1]["W_dec"].numpy().tobytes()
    assert layers_in(folder) == [0, 1, 2]


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ("activation: topk\nk: 8", "has activation 'topk', which is not computed here"),
        ("scan: one\nscan: other", "contradicts itself: it has scan twice"),
        (
            "model_kind: cross_layer_transcoder",
            "has model_kind 'cross_layer_transcoder', and the files beside it are a",
        ),
        ("scaling: 2.0 # of tomorrow", "has scaling '2.0', which is not computed here"),
        ("{activation: topk}", "has a line that is no field, such as model_kind"),
    ],
)
def test_a_field_that_is_not_computed_is_refused_by_its_name(tmp_path: Path, config: str, said: str) -> None:
    folder = transcoders.set_saved(tmp_path, {0: TENSORS}, config=False)
    (folder / "config.yaml").write_text(config)
    with pytest.raises(UsageError, match=said):
        read_folder(folder, 0)


def test_other_fields_are_heard_or_change_nothing(tmp_path: Path) -> None:
    folder = transcoders.set_saved(tmp_path, {0: TENSORS}, config=False)
    (folder / "config.yaml").write_text(
        '---\n# of a set\nmodel_name: "google/gemma-2-2b"\nmodel_kind: transcoder_set\n'
        "feature_input_hook: mlp.hook_in\n"
        "transcoders:\n- layer_0.safetensors\nscan: gemma\nof_tomorrow: null\n"
    )
    found = read_folder(folder, 0)
    assert (found.model, found.unknown, found.form.trained_at) == (
        "google/gemma-2-2b",
        ("of_tomorrow",),
        "blocks.0.mlp.hook_in",
    )
    folder = transcoders.set_saved(tmp_path, {0: TENSORS}, config=False)
    (folder / "config.yaml").write_text("feature_input_hook: null\nfeature_output_hook:\nmodel_name: ~\n")
    found = read_folder(folder, 0)
    assert (found.form.trained_at, found.form.written_at, found.model) == (None, None, None)


def test_a_negative_threshold_is_refused(tmp_path: Path) -> None:
    """Below it circuit-tracer keeps a feature that is negative, and a JumpReLU here does not."""
    tensors = TENSORS | {"activation_function.threshold": torch.full((transcoders.FEATURES,), -0.1)}
    with pytest.raises(UsageError, match="has numbers below 0, which is not computed here"):
        read_folder(transcoders.set_saved(tmp_path, {0: tensors}), 0)


def test_what_is_wrong_is_one_sentence(tmp_path: Path) -> None:
    folder = transcoders.across_saved(tmp_path / "clt", transcoders.drawn_across(READ_WIDTH, LAYERS))
    with pytest.raises(UsageError, match=r"has transcoders of 3 layers: add them all by engine\.add_transcoders"):
        read_folder(folder)
    with pytest.raises(UsageError, match=r"has no W_enc_7\.safetensors; it has transcoders of layers 0, 1, 2\."):
        read_folder(folder, 7)
    (folder / "W_dec_1.safetensors").unlink()
    with pytest.raises(UsageError, match=r"has no W_dec_1\.safetensors"):
        read_folder(folder, 1)
    save_file(transcoders.drawn(READ_WIDTH), folder / "W_dec_2.safetensors")
    with pytest.raises(UsageError, match=r"W_dec_2\.safetensors has \w+, which is no tensor of layer 2\."):
        read_folder(folder, 2)
    other = tmp_path / "other.safetensors"
    save_file(TENSORS, other)
    with pytest.raises(UsageError, match="is no file of one layer, which is named"):
        read_folder(other)
    save_file({"W_dec": TENSORS["W_dec"]}, tmp_path / "layer_3.safetensors")
    with pytest.raises(UsageError, match="has no W_enc, so it is no transcoder of circuit-tracer"):
        read_folder(tmp_path, 3)
    (tmp_path / "layer_3.safetensors").write_bytes(b"\xff" * 64)
    with pytest.raises(UsageError, match="is no safetensors file"):
        read_folder(tmp_path, 3)
    (tmp_path / "config.yaml").write_bytes(b"x" * (2**20 + 1))
    with pytest.raises(UsageError, match=r"config\.yaml has .* are read of it"):
        read_folder(tmp_path, 3)
