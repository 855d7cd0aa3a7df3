"""Folders of modules: those of SAELens and declared ones are read; what is wrong with one is said in a sentence."""

from __future__ import annotations

import json
import pickle
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from djinn_jupyter.errors import UsageError
from djinn_jupyter.module_files.folder import read_folder
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


def test_the_digest_tells_folders_apart(tmp_path: Path) -> None:
    one = read_folder(saes.saved(tmp_path / "one", TENSORS)).digest
    assert read_folder(saes.saved(tmp_path / "same", TENSORS)).digest == one
    assert read_folder(saes.saved(tmp_path / "options", TENSORS, apply_b_dec_to_input=False)).digest != one
    assert read_folder(saes.saved(tmp_path / "tensors", saes.drawn(WIDTH, seed=1))).digest != one


def test_options_of_before_saelens_6_mean_what_they_did(tmp_path: Path) -> None:
    old = {"activation_fn_str": "topk", "activation_fn_kwargs": {"k": 7}, "hook_name": "blocks.2.hook_resid_pre"}
    form = read_folder(saes.saved(tmp_path, TENSORS, **old, normalize_activations=False)).form
    assert (form.activation, form.k, form.normalization, form.trained_at) == (
        "topk",
        7,
        "none",
        "blocks.2.hook_resid_pre",
    )


def test_a_declared_form_is_read(tmp_path: Path) -> None:
    (tmp_path / "module.json").write_text(json.dumps({"kind": "probe", "dtype": "float32"}))
    save_file({"weight": torch.ones(2, WIDTH), "bias": torch.zeros(2)}, tmp_path / "module.safetensors")
    assert read_folder(tmp_path).form.kind == "probe"


@pytest.mark.parametrize(
    ("cfg", "sentence"),
    [
        ({"architecture": "temporal"}, "architecture 'temporal', which is not computed here"),
        ({"architecture": "crosscoder"}, "architecture 'crosscoder', which is not computed here"),
        ({"architecture": ["topk"]}, "architecture"),
        ({"activation_fn": "tanh-relu"}, "activation_fn 'tanh-relu', which is not computed here"),
        ({"normalize_activations": "expected_average_only_in"}, "its factor is not in the folder: fold it"),
        ({"normalize_activations": True}, "its factor is not in the folder: fold it"),
        ({"normalize_activations": "covariance_whitening"}, "normalize_activations 'covariance_whitening'"),
        ({"reshape_activations": "hook_mlp"}, "reshape_activations 'hook_mlp', which is not computed here"),
        ({"finetuning_scaling_factor": True}, "finetuning_scaling_factor, which is not computed here"),
        ({"dtype": "float8"}, "dtype 'float8', which is not computed here"),
        ({"architecture": "topk", "k": 0}, "k 0; a topk keeps at least one"),
        ({"architecture": "topk", "k": "many"}, "k 'many'; a topk keeps at least one"),
    ],
)
def test_an_option_that_is_not_computed_is_refused_by_its_name(tmp_path: Path, cfg: Any, sentence: str) -> None:
    with pytest.raises(UsageError, match=sentence):
        read_folder(saes.saved(tmp_path, TENSORS, **({"architecture": "standard"} | cfg)))


def header(entries: Any) -> bytes:
    said = entries if isinstance(entries, bytes) else json.dumps(entries).encode()
    return struct.pack("<Q", len(said)) + said


ENTRY = {"dtype": "F32", "shape": [2, 2], "data_offsets": [0, 16]}
HOSTILE: dict[str, tuple[Callable[[bytes], bytes], str]] = {
    "empty": (lambda whole: b"", "is no safetensors file"),
    "a few bytes": (lambda whole: b"\1\2", "is no safetensors file"),
    "cut in its header": (lambda whole: whole[:20], "is cut short"),
    "cut in its values": (lambda whole: whole[:-1], "is cut short"),
    "a header beyond all bounds": (lambda whole: b"\xff" * 64, "is no safetensors file"),
    "a pickle": (lambda whole: pickle.dumps({"W_enc": 1}), "is no safetensors file"),
    "no JSON": (lambda whole: header(b"not JSON"), "its header cannot be read"),
    "a list": (lambda whole: header([1]), "its header cannot be read"),
    "a deep one": (lambda whole: header(b"[" * 100_000), "its header cannot be read"),
    "no entry": (lambda whole: header({"W_enc": 3}), "contradicts itself"),
    "a shape below zero": (lambda whole: header({"W_enc": ENTRY | {"shape": [-2, 2]}}), "contradicts itself"),
    "a shape of truths": (lambda whole: header({"W_enc": ENTRY | {"shape": [True, 4]}}), "contradicts itself"),
    "a huge shape": (lambda whole: header({"W_enc": ENTRY | {"shape": [2**62, 2**62]}}), "contradicts itself"),
    "many axes": (lambda whole: header({"W_enc": ENTRY | {"shape": [1] * 4000}}), "contradicts itself"),
    "bytes in common": (
        lambda whole: header({"W_enc": ENTRY, "W_dec": ENTRY}) + bytes(16),
        "contradicts itself: W_dec and W_enc have bytes in common",
    ),
    "places before": (lambda whole: header({"W_enc": ENTRY | {"data_offsets": [16, 0]}}), "contradicts itself"),
    "places beyond": (lambda whole: header({"W_enc": ENTRY | {"data_offsets": [2**60, 2**60 + 16]}}), "is cut short"),
    "whole numbers": (lambda whole: header({"W_enc": ENTRY | {"dtype": "I64"}}), "is of dtype I64"),
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_a_hostile_file_is_refused_in_a_sentence(tmp_path: Path, kind: str) -> None:
    spoil, sentence = HOSTILE[kind]
    path = saes.saved(tmp_path, TENSORS) / "sae_weights.safetensors"
    path.write_bytes(spoil(path.read_bytes()))
    with pytest.raises(UsageError, match=sentence):
        read_folder(tmp_path)


def test_a_pickle_is_never_read(tmp_path: Path) -> None:
    (tmp_path / "params.pt").write_bytes(pickle.dumps(print))
    with pytest.raises(UsageError, match=r"params\.pt is a pickle, which is code and never read"):
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
