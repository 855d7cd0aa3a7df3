"""A folder of PEFT is read as matrices and factors; anything else is one sentence, and nothing of it is run."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch

from djinn_jupyter.errors import UsageError
from djinn_jupyter.modules.files import files
from djinn_jupyter.modules.files.peft import LORA, read_adapter
from tests import adapters

PATHS = ("model.layers.0.self_attn.q_proj", "model.layers.1.self_attn.q_proj", "model.layers.1.mlp.up_proj")


def tensors(rank: int = adapters.RANK) -> adapters.Tensors:
    return {
        f"base_model.model.{path}.lora_{half}.weight": torch.ones(shape)
        for path in PATHS
        for half, shape in (("A", (rank, 8)), ("B", (8, rank)))
    }


def factors(folder: Path, **config: Any) -> list[float]:
    return [one.factor for one in read_adapter(adapters.saved(folder, tensors(), **config)).modules]


def test_matrices_and_factors_are_read(tmp_path: Path) -> None:
    found = read_adapter(adapters.saved(tmp_path, tensors()))
    assert [one.path for one in found.modules] == sorted(PATHS)
    assert [(one.down.shape, one.up.shape) for one in found.modules] == [((4, 8), (8, 4))] * 3
    assert found.digest == read_adapter(tmp_path).digest
    assert factors(tmp_path) == [6 / 4] * 3
    assert factors(tmp_path, use_rslora=True) == [6 / 2] * 3
    changed = read_adapter(adapters.saved(tmp_path, tensors(), lora_alpha=7))
    assert changed.digest != found.digest


def test_patterns_are_names_at_the_end_of_a_path(tmp_path: Path) -> None:
    assert factors(tmp_path, alpha_pattern={"q_proj": 8}) == [2.0, 1.5, 2.0]
    assert factors(tmp_path, alpha_pattern={"layers.1.self_attn.q_proj": 8}) == [1.5, 1.5, 2.0]
    assert factors(tmp_path, alpha_pattern={"^model.layers.1.self_attn.q_proj": 8}) == [1.5, 1.5, 2.0]
    assert factors(tmp_path, alpha_pattern={r".*\.1\..*_proj": 8, "q_proj": 4}) == [1.0, 2.0, 2.0]
    assert factors(tmp_path, alpha_pattern={"q_proj|up_proj": 8}) == [2.0, 2.0, 2.0]
    assert factors(tmp_path, alpha_pattern={"^layers.1.self_attn.q_proj": 8, "proj": 8}) == [1.5, 1.5, 1.5]


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "another method": ({"peft_type": "IA3"}, "peft_type 'IA3', which is not computed here; there is LORA"),
    "DoRA": ({"use_dora": True}, "has use_dora True, which is not computed here; merge it in PEFT"),
    "whole modules": ({"modules_to_save": ["lm_head"]}, r"has modules_to_save \['lm_head'\]"),
    "biases": ({"bias": "all"}, "has bias 'all'"),
    "an option of tomorrow": ({"use_flora": {"depth": 3}}, r"has use_flora \{'depth': 3\}"),
    "changed base weights": ({"init_lora_weights": "pissa_niter_4"}, "with which the base weights were changed"),
    "a broken expression": ({"alpha_pattern": {"(q": 3}}, r"has alpha_pattern \['\(q'\]: .*unterminated subpattern"),
    "a vast alpha": ({"lora_alpha": 10**400}, "has lora_alpha 1000.*; it has to be a number"),
    "no targets": ({"target_modules": None}, "has no target_modules, for which PEFT guesses"),
    "targets of another": ({"target_modules": ["k_proj"]}, r"has target_modules \['k_proj'\], by which none of the"),
    "layers of an expression": (
        {"target_modules": ".*q_proj", "layers_to_transform": [1]},
        "has layers_to_transform or layers_pattern, which is only for a list target_modules",
    ),
    "a pattern without layers": ({"layers_pattern": "layers"}, "has layers_pattern and no layers_to_transform"),
    "an odd pattern": ({"layers_to_transform": 1, "layers_pattern": "(a+)+"}, r"has layers_pattern '\(a\+\)\+'"),
    "a rank of another": ({"r": 8}, r"has r 8 for .*, and lora_A has shape \[4, 8\]"),
    "no rank": ({"r": 0}, "a rank is a whole number from 1 on"),
    "a worded alpha": ({"lora_alpha": "six"}, "has lora_alpha 'six' for .*; it has to be a number"),
    "listed patterns": ({"rank_pattern": [3]}, "has rank_pattern .*; it has to be an object of numbers"),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_an_option_that_is_not_computed_is_refused_by_its_name(tmp_path: Path, kind: str) -> None:
    config, sentence = REFUSED[kind]
    with pytest.raises(UsageError, match=sentence):
        read_adapter(adapters.saved(tmp_path, tensors(), **config))


@pytest.mark.parametrize("name", LORA.refused)
def test_each_refused_field_is_refused_and_its_default_is_not(tmp_path: Path, name: str) -> None:
    default = LORA.refused[name][0]
    assert factors(tmp_path, **{name: default}) == factors(tmp_path, **{name: []}) == [1.5] * 3
    for value in (True, 3, "some", [0], {"a": None}):
        with pytest.raises(UsageError, match=f"has {name} .*, which is not computed here"):
            read_adapter(adapters.saved(tmp_path, tensors(), **{name: value}))


Q0, Q1, UP1 = PATHS
NARROWED: tuple[tuple[dict[str, Any], tuple[str, ...]], ...] = (
    ({"target_modules": ["q_proj"]}, (Q0, Q1)),
    ({"target_modules": [Q1, "up_proj"]}, (Q1, UP1)),
    ({"target_modules": "all-linear"}, PATHS),
    ({"target_modules": r".*layers\.[1-3]\..*(q_proj|up_proj)"}, (Q1, UP1)),
    ({"target_modules": r"^(?!.*mlp).*proj$"}, (Q0, Q1)),
    ({"layers_to_transform": 0}, (Q0,)),
    ({"layers_to_transform": [1, 5]}, (Q1, UP1)),
    ({"layers_to_transform": []}, PATHS),
    ({"layers_to_transform": [0], "target_modules": [Q1, "q_proj"]}, (Q0, Q1)),
    ({"layers_to_transform": [1], "layers_pattern": "layers"}, (Q1, UP1)),
    ({"layers_to_transform": [0], "layers_pattern": ["h", "layers"]}, (Q0,)),
    ({"exclude_modules": ["up_proj"]}, (Q0, Q1)),
    ({"exclude_modules": [Q0]}, (Q1, UP1)),
    ({"exclude_modules": r".*\.1\..*"}, (Q0,)),
)


@pytest.mark.parametrize(("config", "chosen"), NARROWED, ids=str)
def test_a_config_chooses_modules_of_the_file(tmp_path: Path, config: dict[str, Any], chosen: tuple[str, ...]) -> None:
    found = read_adapter(adapters.saved(tmp_path, tensors(), **config))
    assert {one.path for one in found.modules} == set(chosen)


def test_a_pattern_that_takes_years_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "MOST_SECONDS", 0.5)
    with pytest.raises(UsageError, match=r"has exclude_modules '\(\.\*\)\*x.*': it takes more than 0\.5 seconds"):
        read_adapter(adapters.saved(tmp_path, tensors(), exclude_modules="(.*)*x" * 3))


def test_files_that_are_no_adapter_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="There is no folder"):
        read_adapter(tmp_path / "missing")
    with pytest.raises(UsageError, match=r"has no adapter_config\.json, so it is no adapter of PEFT"):
        read_adapter(tmp_path)
    folder = adapters.saved(tmp_path, tensors())
    weights, config = folder / "adapter_model.safetensors", folder / "adapter_config.json"
    whole = weights.read_bytes()
    weights.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(UsageError, match="is cut short"):
        read_adapter(folder)
    weights.write_bytes(pickle.dumps({"a": 1}))
    with pytest.raises(UsageError, match="is no safetensors file"):
        read_adapter(folder)
    weights.unlink()
    (folder / "adapter_model.bin").write_bytes(pickle.dumps({"a": 1}))
    with pytest.raises(UsageError, match=r"adapter_model\.bin is a pickle, which is code and never read"):
        read_adapter(folder)
    weights.write_bytes(whole)
    for text in ("[1]", "{", "[" * 100_000, json.dumps([])):
        config.write_text(text)
        with pytest.raises(UsageError, match="cannot be read as a JSON object"):
            read_adapter(folder)


def test_matrices_that_are_none_are_refused(tmp_path: Path) -> None:
    good = tensors()
    first = next(iter(good))
    wrong: dict[str, tuple[adapters.Tensors, str]] = {
        "an embedding": (good | {"base_model.model.wte.lora_embedding_A": torch.ones(4, 4)}, "no LoRA matrix of a"),
        "a magnitude": (good | {first.replace("lora_A.weight", "lora_magnitude_vector"): torch.ones(4)}, "no LoRA"),
        "a half": ({name: one for name, one in good.items() if name != first}, "has lora_B of .* and no lora_A"),
        "nothing": ({}, "changes 0 modules"),
    }
    for number, (saved, sentence) in enumerate(wrong.values()):
        with pytest.raises(UsageError, match=sentence):
            read_adapter(adapters.saved(tmp_path / str(number), saved))
