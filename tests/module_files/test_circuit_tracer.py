"""Folders of circuit-tracer: a transcoder for each layer, and a cross-layer transcoder; wrong ones in a sentence."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from djinn_jupyter.errors import UsageError
from djinn_jupyter.modules.files.circuit_tracer import layers_in
from djinn_jupyter.modules.files.folder import read_folder
from tests import transcoders

WIDTH, LAYERS = 16, 3
TENSORS = transcoders.drawn(WIDTH, skip=True)


def test_a_file_of_one_layer_is_read_to_the_bit_and_says_where_it_reads_and_writes(tmp_path: Path) -> None:
    folder = transcoders.set_saved(tmp_path, {0: TENSORS, 10: transcoders.drawn(WIDTH)})
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
    tensors = transcoders.drawn(WIDTH) | {"activation_function.threshold": torch.ones(transcoders.FEATURES)}
    half = {name: tensor.bfloat16() for name, tensor in tensors.items()}
    form = read_folder(transcoders.set_saved(tmp_path, {4: half}, config=False), 4).form
    assert (form.activation, form.dtype, form.trained_at) == ("jumprelu", "bfloat16", None)


def test_a_layer_of_a_cross_layer_transcoder_is_a_module(tmp_path: Path) -> None:
    layers = transcoders.drawn_across(WIDTH, LAYERS)
    folder = transcoders.across_saved(tmp_path, layers)
    found = read_folder(folder, 1)
    assert (found.form.kind, found.form.trained_at) == ("cross_layer_transcoder", "blocks.1.mlp.hook_in")
    assert bytes(found.tensors["W_dec"].data) == layers[1]["W_dec"].numpy().tobytes()
    assert layers_in(folder) == [0, 1, 2]


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ("activation: topk\nk: 8", "has activation 'topk', which is not computed here"),
        ("activation: gelu", "has activation 'gelu', which is not computed here with these files"),
        ("activation: jumprelu", "has activation 'jumprelu', which is not computed here with these files"),
        ("scan: one\nscan: other", "contradicts itself: it has scan twice"),
        (
            "model_kind: cross_layer_transcoder",
            "has model_kind 'cross_layer_transcoder', and the files beside it are a",
        ),
        ("scaling: 2.0 # of tomorrow", "has scaling '2.0', which is not computed here"),
        ("scaling:\n  - 1\n  - 2", "has scaling '- 1- 2', which is not computed here"),
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


def test_a_hook_without_a_value_is_none(tmp_path: Path) -> None:
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
    folder = transcoders.across_saved(tmp_path / "clt", transcoders.drawn_across(WIDTH, LAYERS))
    with pytest.raises(UsageError, match=r"has transcoders of 3 layers: add them all by engine\.add_transcoders"):
        read_folder(folder)
    with pytest.raises(UsageError, match=r"has no W_enc_7\.safetensors; it has transcoders of layers 0, 1, 2\."):
        read_folder(folder, 7)
    (folder / "W_dec_1.safetensors").unlink()
    with pytest.raises(UsageError, match=r"has no W_dec_1\.safetensors"):
        read_folder(folder, 1)
    save_file(transcoders.drawn(WIDTH), folder / "W_dec_2.safetensors")
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
