"""Gemma Scope 2's files are the modules that SAELens makes of them; other files of Gemma Scope are refused by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from djinn_jupyter.errors import UsageError
from djinn_jupyter.modules.files.folder import ModuleFolder, read_folder
from tests import gemma_scopes, saes
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


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
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
        ({"architecture": ["jump_relu"]}, r"of architecture \['jump_relu'\], which is not computed here"),
        ({"hf_hook_point_out": "somewhere"}, "hf_hook_point_out 'somewhere', which is not computed here"),
        ({"affine_connection": True}, r"affine_connection True, and params\.safetensors has no affine_skip_connection"),
        ({"width": 47}, r"has width 47, and w_enc has shape \[16, 48\]"),
        ({"type": "crosscoder"}, "has type 'crosscoder', which is not computed here"),
        ({"type": "transcoder"}, "has type 'transcoder', which is not computed here with hf_hook_point_out None"),
        ({"rescale": 2.0}, "has rescale 2.0, which is not computed here"),
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
