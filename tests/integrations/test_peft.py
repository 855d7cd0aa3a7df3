"""Adapters that PEFT itself made and saved, computed by an engine and by PEFT: the same bits, or refused by name.
`make peers` installs it."""

from __future__ import annotations

import json
from dataclasses import fields
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch

from djinn_jupyter.errors import UsageError
from djinn_jupyter.modules.files.peft import LORA
from tests.engine.adapters.adapting import add, let_go, use
from tests.engine.desk import Desk, desk_of, tokens
from tests.engine.plain import generate, plain_of
from tests.families import build

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(find_spec("peft") is None, reason="no PEFT here: make peers"),
]
PROMPT, NEW = tokens(14, seed=3), 4
EVERY_LINEAR_MODULE = (
    "llama",
    "gpt2",  # Conv1D
    "qwen3",
    "gemma2",  # tied head, norms behind the blocks
    "gemma3_text",
    "phi3",  # one map for queries, keys and values
    "gpt_neox",
    "falcon",  # one head of keys and values, parallel blocks
    "bloom",
    "opt",
    "cohere",
    "mpt",
    "qwen2_moe",  # its shared expert; its experts are parameters
)
CHOSEN: tuple[tuple[str, Any, dict[str, Any]], ...] = (
    ("mixtral", ["q_proj", "v_proj"], {}),
    ("deepseek_v3", ["q_a_proj", "kv_b_proj", "o_proj"], {}),
    ("llama", r".*layers\.[0-3]\..*(q_proj|up_proj)", {}),
    ("llama", ["q_proj", "up_proj"], {"layers_to_transform": [1, 2]}),
    ("gpt_neox", ["query_key_value"], {"rank_pattern": {"query_key_value": 8}, "use_rslora": True}),
    ("llama", ["q_proj"], {"rank_pattern": {r".*\.[01]\.self_attn\.q_proj": 2}}),
    (
        "llama",
        ["q_proj", "up_proj"],
        {"rank_pattern": {"layers.1.self_attn.q_proj": 2}, "alpha_pattern": {"up_proj": 11}},
    ),
)
NARROWED: tuple[dict[str, Any], ...] = (
    {"target_modules": ["q_proj", "model.layers.1.mlp.up_proj"]},
    {"target_modules": r".*layers\.[0-3]\..*(q_proj|up_proj)"},
    {"target_modules": r"^(?!.*mlp).*proj$"},
    {"target_modules": "ALL-linear"},
    {"layers_to_transform": [1, 2]},
    {"layers_to_transform": 3},
    {"layers_to_transform": [2], "layers_pattern": "layers"},
    {"layers_to_transform": [2], "target_modules": ["model.layers.0.self_attn.q_proj", "up_proj"]},
    {"exclude_modules": ["mlp.up_proj", "k_proj"]},
    {"exclude_modules": r".*layers\.[02]\..*"},
    {"alpha_pattern": {r".*\.[01]\.self_attn\.q_proj": 2, "q_proj": 7}},
    {"alpha_pattern": {"q_proj|up_proj": 2}},
    {"fan_in_fan_out": True},
    {"use_rslora": True},
)
REFUSED: tuple[tuple[str, Any, dict[str, Any], str], ...] = (
    ("llama", ["q_proj"], {"use_dora": True}, r"has use_dora True, .* merge it in PEFT"),
    ("llama", ["q_proj"], {"modules_to_save": ["lm_head"]}, r"has modules_to_save \['lm_head'\]"),
    ("gpt2", ["c_attn"], {"bias": "all"}, "has bias 'all'"),
    ("gpt2", ["c_attn"], {"lora_bias": True}, "has lora_bias True"),
    ("gpt2", ["c_attn", "wte"], {}, "wte.lora_embedding_A, which is no LoRA matrix"),
    ("llama", ["q_proj"], {"init_lora_weights": "pissa"}, "has init_lora_weights 'pissa'"),
    ("mixtral", "all-linear", {}, "has target_parameters .*, which is not computed here"),
)


def made(family: str, folder: Path, targets: Any, **options: Any) -> Path:
    """Have PEFT draw an adapter of a family's model, both of its matrices at random, and save it."""
    from peft import LoraConfig, get_peft_model

    torch.manual_seed(0)
    drawn = {"r": 4, "lora_alpha": 6, "init_lora_weights": False, "task_type": "CAUSAL_LM", **options}
    get_peft_model(build(family), LoraConfig(target_modules=targets, **drawn)).save_pretrained(folder)
    return folder


def require_same_bits(family: str, folder: Path) -> None:
    """Generate with the adapter on an engine and in PEFT, and beside it without."""
    from peft import PeftModel

    desk = desk_of(family)
    try:
        tuned, base = generated(desk, folder)
    finally:
        desk.close_all()
        let_go(desk)
    theirs = PeftModel.from_pretrained(build(family), folder).eval().requires_grad_(False)
    assert tuned == generate(theirs.get_base_model(), PROMPT, NEW)
    assert base == generate(plain_of(family), PROMPT, NEW)
    assert not torch.equal(tuned.logits, base.logits)


def generated(desk: Desk, folder: Path) -> tuple[Any, Any]:
    add(desk, folder)
    use(desk, "tuned")
    desk.open("base")
    tuned, base = (desk.outcome(desk.run(PROMPT, NEW, name=name), name) for name in ("tuned", "base"))
    return tuned, base


@pytest.mark.parametrize("family", EVERY_LINEAR_MODULE)
def test_an_adapter_of_every_linear_module_has_pefts_bits(family: str, tmp_path: Path) -> None:
    require_same_bits(family, made(family, tmp_path, "all-linear"))


@pytest.mark.parametrize(("family", "targets", "options"), CHOSEN, ids=str)
def test_modules_ranks_and_factors_are_chosen_as_in_peft(
    family: str, targets: Any, options: dict[str, Any], tmp_path: Path
) -> None:
    require_same_bits(family, made(family, tmp_path, targets, **options))


@pytest.mark.parametrize("narrowed", NARROWED, ids=str)
@pytest.mark.filterwarnings("ignore:Found (missing|unexpected) adapter keys")
def test_a_config_that_narrows_its_file_is_heard_as_by_peft(narrowed: dict[str, Any], tmp_path: Path) -> None:
    folder = made("llama", tmp_path, ["q_proj", "k_proj", "up_proj", "down_proj"])
    path = folder / "adapter_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"init_lora_weights": True} | narrowed))
    require_same_bits("llama", folder)


def test_every_field_of_pefts_config_is_in_the_table() -> None:
    from peft import LoraConfig

    assert not LORA.unknown(one.name for one in fields(LoraConfig))
    assert not LORA.unheard(LoraConfig(task_type="CAUSAL_LM").to_dict())


@pytest.mark.parametrize(("family", "targets", "options", "said"), REFUSED, ids=str)
def test_what_is_not_computed_is_refused_by_its_name(
    family: str, targets: Any, options: dict[str, Any], said: str, tmp_path: Path
) -> None:
    folder = made(family, tmp_path, targets, **options)
    with pytest.raises(UsageError, match=said):
        add(desk_of(family), folder)


def test_an_adapter_of_another_model_is_refused(tmp_path: Path) -> None:
    folder = made("gpt2", tmp_path, "all-linear")
    with pytest.raises(UsageError, match="The adapter is of another model: it changes transformer"):
        add(desk_of("llama"), folder)
