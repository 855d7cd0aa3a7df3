"""Folders of modules: those of SAELens and declared ones are read; what is wrong with one is said in a sentence."""

from __future__ import annotations

import json
import pickle
import struct
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from djinn_jupyter.errors import UsageError
from djinn_jupyter.modules.files.folder import read_folder
from djinn_jupyter.modules.files.saelens import CONFIG, METADATA
from tests import saes

WIDTH = 16
TENSORS = saes.drawn(WIDTH)


def test_a_folder_of_saelens_is_read_to_the_bit(tmp_path: Path) -> None:
    folder = saes.saved(tmp_path, TENSORS, "jumprelu", metadata={"hook_name": "blocks.4.hook_resid_post"})
    found = read_folder(folder)
    assert (found.form.kind, found.form.activation, found.form.subtracts_decoder_bias) == ("sae", "jumprelu", True)
    assert found.form.trained_at == "blocks.4.hook_resid_post"
    for name, tensor in TENSORS.items():
        assert found.tensors[name].shape == tuple(tensor.shape)
        assert bytes(found.tensors[name].data) == tensor.numpy().tobytes()
    one = read_folder(saes.saved(tmp_path / "one", TENSORS)).digest
    assert read_folder(saes.saved(tmp_path / "same", TENSORS)).digest == one
    assert read_folder(saes.saved(tmp_path / "options", TENSORS, apply_b_dec_to_input=False)).digest != one
    assert read_folder(saes.saved(tmp_path / "tensors", saes.drawn(WIDTH, seed=1))).digest != one
    (tmp_path / "declared").mkdir()
    (tmp_path / "declared" / "module.json").write_text(json.dumps({"kind": "probe", "dtype": "float32"}))
    save_file({"weight": torch.ones(2, WIDTH), "bias": torch.zeros(2)}, tmp_path / "declared" / "module.safetensors")
    assert read_folder(tmp_path / "declared").form.kind == "probe"


def test_options_of_before_saelens_6_mean_what_they_did(tmp_path: Path) -> None:
    old = {"activation_fn_str": "topk", "activation_fn_kwargs": {"k": 7}, "hook_name": "blocks.2.hook_resid_pre"}
    form = read_folder(saes.saved(tmp_path, TENSORS, **old, normalize_activations=False)).form
    assert (form.activation, form.k, form.normalization, form.trained_at) == (
        "topk",
        7,
        "none",
        "blocks.2.hook_resid_pre",
    )


@pytest.mark.parametrize(
    ("cfg", "sentence"),
    [
        ({"architecture": "temporal"}, "architecture 'temporal', which is not computed here"),
        ({"normalize_activations": "expected_average_only_in"}, "its factor is not in the folder: fold it"),
        ({"reshape_activations": "hook_mlp"}, "reshape_activations 'hook_mlp', which is not computed here"),
        ({"finetuning_scaling_factor": True}, "finetuning_scaling_factor, which is not computed here"),
        ({"architecture": "topk", "k": 0}, "k 0; a topk keeps at least one"),
        ({"apply_b_dec_to_input": 0.5}, "apply_b_dec_to_input 0.5; it has to be true or false"),
        (
            {"activation_fn_kwargs": {"tanh_factor": 2}},
            "activation_fn_kwargs {'tanh_factor': 2}, which is not",
        ),
        ({"architecture": "topk", "k": 5, "activation_fn_kwargs": {"k": 6}}, "contradicts itself: it has k 5 and 6"),
        ({"reshape_activations": "hook_z", "hook_name": "blocks.4.hook_resid_pre"}, "'hook_z', and was trained at"),
        (
            {"hook_name": "blocks.4.hook_resid_pre", "metadata": {"hook_name": "blocks.3.hook_resid_pre"}},
            "contradicts itself: it has hook_name 'blocks.4.hook_resid_pre' and 'blocks.3.hook_resid_pre'",
        ),
        (
            {"architecture": "transcoder", "activation_fn_str": "topk", "k": 5},
            "'topk', .* in architecture 'transcoder'",
        ),
        (
            {"rescale_acts_by_decoder_norm": True},
            "has rescale_acts_by_decoder_norm, which is computed here for topk alone",
        ),
        ({"hook_name": ["blocks.4.hook_resid_pre"]}, "has hook_name .*; it has to be a text"),
        ({"d_in": 17}, "has d_in 17, and the tensors beside it have 16"),
        ({"metadata": [1]}, r"has metadata \[1\]; it has to be an object"),
        ({"an_option_of_tomorrow": 3}, "has an_option_of_tomorrow 3, which is not computed here"),
        (
            {"metadata": {"an_option_of_tomorrow": 0}},
            "metadata has an_option_of_tomorrow 0, which is not",
        ),
    ],
)
def test_an_option_that_is_not_computed_is_refused_by_its_name(tmp_path: Path, cfg: Any, sentence: str) -> None:
    with pytest.raises(UsageError, match=sentence):
        read_folder(saes.saved(tmp_path, TENSORS, **({"architecture": "standard"} | cfg)))


@pytest.mark.parametrize(("name", "inside"), [*product(METADATA.refused, [True]), *product(CONFIG.refused, [False])])
def test_each_refused_field_is_refused_and_its_default_is_not(tmp_path: Path, name: str, inside: bool) -> None:
    def form(value: Any) -> Any:
        return read_folder(saes.saved(tmp_path, TENSORS, **({"metadata": {name: value}} if inside else {name: value})))

    plain = read_folder(saes.saved(tmp_path, TENSORS)).form
    default = CONFIG.refused[name][0]
    assert form(default).form == form(None).form == form([]).form == plain
    for value in (True, 0, 3, "some", [0]):
        with pytest.raises(UsageError, match=f"has {name} .*, which is not computed here"):
            form(value)


@pytest.mark.parametrize("inside", [True, False])
@pytest.mark.parametrize(
    ("hook", "loaded", "said"),
    [
        ("blocks.4.hook_attn_in", {"fold_ln": True}, "has fold_ln, which changes the values at blocks.4.hook_attn_in"),
        (None, {"center_writing_weights": True}, "has center_writing_weights, which .* that the file does not name"),
        ("blocks.4.hook_resid_pre", {"fold_ln": "yes"}, "has fold_ln 'yes'; it has to be true or false"),
        ("blocks.4.hook_resid_pre", {"checkpoint_index": 0}, "has checkpoint_index 0, .* of another model"),
        ("blocks.4.hook_resid_pre", "fold_ln", "model_from_pretrained_kwargs 'fold_ln'; it has to be an object"),
    ],
)
def test_a_model_that_was_loaded_in_another_way_is_refused(
    tmp_path: Path, inside: bool, hook: str | None, loaded: Any, said: str
) -> None:
    fields = {"model_from_pretrained_kwargs": loaded} | ({} if hook is None else {"hook_name": hook})
    folder = saes.saved(tmp_path, TENSORS, **({"metadata": fields} if inside else fields))
    with pytest.raises(UsageError, match=said):
        read_folder(folder)


@pytest.mark.parametrize(
    ("hook", "loaded", "centered"),
    [
        ("blocks.4.hook_resid_pre", {"fold_ln": True, "center_unembed": True, "fold_value_biases": True}, False),
        ("blocks.4.hook_resid_pre", {"center_writing_weights": True, "fold_ln": True}, True),
        ("blocks.4.hook_mlp_out", {"center_writing_weights": True}, True),
        ("blocks.4.mlp.hook_post", {"center_writing_weights": True}, False),
        ("blocks.4.hook_mlp_out", {"center_writing_weights": False, "device": "cuda", "dtype": "bfloat16"}, False),
        ("blocks.4.hook_mlp_out", None, False),
    ],
)
def test_centered_weights_are_a_mean_that_is_subtracted(tmp_path: Path, hook: str, loaded: Any, centered: bool) -> None:
    folder = saes.saved(tmp_path, TENSORS, metadata={"model_from_pretrained_kwargs": loaded, "hook_name": hook})
    assert read_folder(folder).form.centered is centered


@pytest.mark.parametrize(
    ("hook", "loaded", "folded"),
    [
        ("mlp.hook_in", ("fold_ln", "fold_value_biases"), (True, False)),
        ("ln1.hook_normalized", ("fold_ln",), (True, False)),
        ("hook_mlp_in", ("fold_ln", "fold_value_biases"), (False, False)),
        ("attn.hook_z", ("fold_ln", "fold_value_biases"), (True, True)),
        ("attn.hook_v", ("fold_value_biases",), (False, True)),
        ("attn.hook_z", ("fold_ln",), (False, False)),
        ("attn.hook_q", ("fold_ln", "fold_value_biases"), (False, False)),
    ],
)
def test_folded_weights_are_heard_where_they_change_values(
    tmp_path: Path, hook: str, loaded: tuple[str, ...], folded: tuple[bool, bool]
) -> None:
    said = {"model_from_pretrained_kwargs": dict.fromkeys(loaded, True), "hook_name": f"blocks.4.{hook}"}
    form = read_folder(saes.saved(tmp_path, TENSORS, metadata=said)).form
    assert (form.norm_folded, form.value_biases_folded) == folded


@pytest.mark.parametrize("name", ["hook_head_index", "hook_point_head_index"])
def test_one_head_is_named_with_its_place(tmp_path: Path, name: str) -> None:
    def form(**said: Any) -> Any:
        return read_folder(saes.saved(tmp_path, TENSORS, **said)).form

    assert form(hook_name="blocks.4.attn.hook_z", **{name: 0}).trained_at == "blocks.4.attn.hook_z[0]"
    for hook in ("blocks.4.hook_resid_pre", "model.layers.3", None):
        with pytest.raises(UsageError, match=f"has {name} 2, and {hook} has no such head"):
            form(hook_name=hook, metadata={name: 2})
    for head in (-1, 1.5, True, "2", [0]):
        with pytest.raises(UsageError, match="has no such head"):
            form(hook_name="blocks.4.attn.hook_z", **{name: head})
    with pytest.raises(UsageError, match=f"has {name} 1 and reshape_activations, which is for all heads"):
        form(hook_name="blocks.4.attn.hook_z", reshape_activations="hook_z", **{name: 1})


def test_a_transcoder_of_centered_weights_is_refused(tmp_path: Path) -> None:
    said = {"hook_name": "mlp_in.4", "model_from_pretrained_kwargs": {"center_writing_weights": True}}
    with pytest.raises(UsageError, match="has center_writing_weights, which changes the values"):
        read_folder(saes.saved(tmp_path, TENSORS, "transcoder", apply_b_dec_to_input=False, metadata=said))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64])
def test_a_scaling_factor_of_ones_is_none_and_another_is_refused(tmp_path: Path, dtype: torch.dtype) -> None:
    plain = read_folder(saes.saved(tmp_path / "plain", TENSORS))
    for said in ({}, {"finetuning_scaling_factor": True}):
        ones = TENSORS | {"scaling_factor": torch.ones(saes.FEATURES, dtype=dtype)}
        found = read_folder(saes.saved(tmp_path / "ones", ones, **said))
        assert (found.form, found.tensors) == (plain.form, plain.tensors)
        ones["scaling_factor"][-1] = 1.01
        with pytest.raises(UsageError, match=r"has a scaling_factor of other values than 1, .* fold it into W_dec"):
            read_folder(saes.saved(tmp_path / "ones", ones, **said))


def test_files_of_a_whole_training_configuration_are_read(tmp_path: Path) -> None:
    """As the first public SAEs have them, on GPT-2's residual."""
    old = {
        "model_name": "gpt2-small", "hook_point": "blocks.4.hook_resid_pre", "hook_point_layer": 4,
        "hook_point_head_index": None, "dataset_path": "Skylion007/openwebtext", "is_dataset_tokenized": False,
        "context_size": 128, "use_cached_activations": False, "cached_activations_path": "activations/gpt2",
        "n_batches_in_buffer": 128, "total_training_tokens": 300000000, "store_batch_size": 32, "seed": 42,
        "dtype": "torch.float32", "b_dec_init_method": "geometric_median", "expansion_factor": 32,
        "from_pretrained_path": None, "l1_coefficient": 8e-05, "lr": 0.0004, "lr_scheduler_name": None,
        "lr_warm_up_steps": 5000, "train_batch_size": 4096, "use_ghost_grads": False, "feature_sampling_window": 1000,
        "feature_sampling_method": None, "resample_batches": 1028, "feature_reinit_scale": 0.2,
        "dead_feature_window": 5000, "dead_feature_estimation_method": "no_fire", "dead_feature_threshold": 1e-08,
        "log_to_wandb": True, "wandb_project": "some", "wandb_entity": None, "wandb_log_frequency": 100,
        "n_checkpoints": 10, "checkpoint_path": "checkpoints/some", "tokens_per_buffer": 67108864, "run_name": "some",
    }  # fmt: skip
    found = read_folder(saes.saved(tmp_path, TENSORS | {"scaling_factor": torch.ones(saes.FEATURES)}, **old))
    assert (found.form.trained_at, found.model, found.unknown) == ("blocks.4.hook_resid_pre", "gpt2-small", ())


def test_unknown_fields_without_a_value_are_named(tmp_path: Path) -> None:
    said = {"of_tomorrow": None, "metadata": {"as_well": {}, "prepend_bos": True}}
    assert read_folder(saes.saved(tmp_path, TENSORS, **said)).unknown == ("of_tomorrow", "as_well")


def header(entries: Any) -> bytes:
    said = entries if isinstance(entries, bytes) else json.dumps(entries).encode()
    return struct.pack("<Q", len(said)) + said


ENTRY = {"dtype": "F32", "shape": [2, 2], "data_offsets": [0, 16]}
NOT_WHOLE = "is no safetensors file, or is cut short"
HOSTILE: dict[str, tuple[Callable[[bytes], bytes], str]] = {
    "cut in its values": (lambda whole: whole[:-1], NOT_WHOLE),
    "a header beyond all bounds": (lambda whole: b"\xff" * 64, NOT_WHOLE),
    "a pickle": (lambda whole: pickle.dumps({"W_enc": 1}), NOT_WHOLE),
    "a deep one": (lambda whole: header(b"[" * 100_000), NOT_WHOLE),
    "a shape below zero": (lambda whole: header({"W_enc": ENTRY | {"shape": [-2, 2]}}) + bytes(16), NOT_WHOLE),
    "many axes": (lambda whole: header({"W_enc": ENTRY | {"shape": [4] + [1] * 4000}}) + bytes(16), "does not cross"),
    "places beyond": (lambda whole: header({"W_enc": ENTRY | {"data_offsets": [2**60, 2**60 + 16]}}), NOT_WHOLE),
    "an entry that says more": (
        lambda whole: header({"W_enc": ENTRY | {"scale": 2.0}}) + bytes(16),
        "W_enc has scale 2.0, which is not computed here",
    ),
    "whole numbers": (
        lambda whole: header({"W_enc": ENTRY | {"dtype": "I64", "shape": [2]}}) + bytes(16),
        "is of dtype I64",
    ),
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_a_hostile_file_is_refused_in_a_sentence(tmp_path: Path, kind: str) -> None:
    spoil, sentence = HOSTILE[kind]
    path = saes.saved(tmp_path, TENSORS) / "sae_weights.safetensors"
    path.write_bytes(spoil(path.read_bytes()))
    with pytest.raises(UsageError, match=sentence):
        read_folder(tmp_path)


def test_what_is_no_folder_of_a_module_is_said(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="There is no folder"):
        read_folder(tmp_path / "missing")
    with pytest.raises(UsageError, match=r"has neither cfg\.json"):
        read_folder(tmp_path)
    (tmp_path / "cfg.json").write_text("{}")
    with pytest.raises(UsageError, match=r"no sae_weights\.safetensors beside it"):
        read_folder(tmp_path)
    save_file(TENSORS, tmp_path / "sae_weights.safetensors")
    (tmp_path / "cfg.json").write_text("[" * 100_000)
    with pytest.raises(UsageError, match="cannot be read as a JSON object"):
        read_folder(tmp_path)
    (tmp_path / "cfg.json").unlink()
    (tmp_path / "module.json").write_text('{"kind": "code", "dtype": "float32"}')
    save_file(TENSORS, tmp_path / "module.safetensors")
    with pytest.raises(UsageError, match="is no form of a module"):
        read_folder(tmp_path)
    (tmp_path / "pickled").mkdir()
    (tmp_path / "pickled" / "params.pt").write_bytes(pickle.dumps(print))
    with pytest.raises(UsageError, match=r"params\.pt is a pickle, which is code and never read"):
        read_folder(tmp_path / "pickled")
