"""Folders as people have them: half copied, of another kind, with weights too many. One sentence answers each."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import LlamaForSequenceClassification

from djinn_jupyter.engine.model.discovery.layer_list import Stack, find_stack
from djinn_jupyter.engine.model.discovery.recording import LENGTHS, spread_tokens
from djinn_jupyter.engine.model.loading import pretrained, quantized
from djinn_jupyter.engine.model.loading.load import load_model
from djinn_jupyter.engine.system.config import EngineConfig
from djinn_jupyter.errors import MissingDependency, ModelDoesNotFit, ModelError, ModelNotFound, ModelRefused
from tests.families import build, configuration, randomise

LFS = "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a214614ab2935c943f9e0ff69d22eadbb8f32\nsize 288360\n"
Spoil = Callable[[Path], object]
State = dict[str, Tensor]


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny Llama in one file of weights."""
    where = tmp_path_factory.mktemp("sound")
    build("llama").save_pretrained(where)
    return where


@pytest.fixture
def folder(sound: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(sound, tmp_path / "model"))


def weights(where: Path) -> Path:
    return where / "model.safetensors"


def fields(where: Path, **changes: Any) -> None:
    config = json.loads((where / "config.json").read_text())
    (where / "config.json").write_text(json.dumps({**config, **changes}))


def state(where: Path, change: Callable[[State], object]) -> None:
    held = load_file(weights(where))
    change(held)
    save_file({name: value.contiguous() for name, value in held.items()}, weights(where), metadata={"format": "pt"})


def cut(where: Path, keep: int) -> None:
    weights(where).write_bytes(weights(where).read_bytes()[:keep])


def as_bin(where: Path, content: bytes) -> None:
    weights(where).unlink()
    (where / "pytorch_model.bin").write_bytes(content)


class _Trap:
    """Runs when it is unpickled."""

    def __reduce__(self) -> Any:
        return pytest.fail, ("a file of weights ran code",)


def trapped(where: Path) -> None:
    weights(where).unlink()
    torch.save({"weight": _Trap()}, where / "pytorch_model.bin")


def without_a_shard(where: Path) -> None:
    weights(where).unlink()
    build("llama").save_pretrained(where, max_shard_size="60KB")
    next(where.glob("model-00002-*.safetensors")).unlink()


def broken_index(where: Path) -> None:
    weights(where).rename(where / "model-00001-of-00001.safetensors")
    (where / "model.safetensors.index.json").write_text("{")


def adapter(where: Path) -> None:
    (where / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": "some/base"}))


def only(where: Path, *names: str) -> None:
    for path in where.iterdir():
        if path.name not in names:
            path.unlink()


def adapter_alone(where: Path) -> None:
    adapter(where)
    only(where, "adapter_config.json")


def in_fp8(held: State) -> None:
    for name in [name for name in held if "proj" in name]:
        held[name] = (held[name] * 4).to(torch.float8_e4m3fn)
        held[f"{name}_scale"] = torch.tensor(0.25)


def fp8(where: Path) -> None:
    state(where, in_fp8)
    fields(where, quantization_config={"quant_method": "modelopt"})


def classifier(where: Path) -> None:
    config = configuration("llama")
    config.tie_word_embeddings = True
    model = LlamaForSequenceClassification(config)
    randomise(model, 0)
    model.save_pretrained(where)


def layers_of(where: Path, **wish: str) -> Stack:
    """Return the decoder layers that the first probe of a model finds."""
    model = load_model(EngineConfig(model=str(where), device="cpu", **wish)).model  # type: ignore[arg-type]
    return find_stack(model, spread_tokens(model, LENGTHS[0])[None])[0]


def add(name: str, *shape: int) -> Spoil:
    return lambda where: state(where, lambda held: held.update({name: torch.ones(shape)}))


DAMAGED = "model.safetensors is cut off or damaged: .*; copy or download it again"
UNREADABLE: dict[str, tuple[Spoil, type[ModelError], str]] = {
    "weights cut off": (lambda f: cut(f, 144_180), ModelRefused, DAMAGED),
    "header cut off": (lambda f: cut(f, 20), ModelRefused, DAMAGED),
    "empty": (lambda f: cut(f, 0), ModelRefused, "model.safetensors is empty"),
    "weights as a pointer": (lambda f: weights(f).write_text(LFS), ModelRefused, "Git LFS pointer .* `git lfs pull`"),
    "config as a pointer": (
        lambda f: (f / "config.json").write_text(LFS), ModelRefused, "config.json is a Git LFS pointer"
    ),
    "pickle as a pointer": (lambda f: as_bin(f, LFS.encode()), ModelRefused, "pytorch_model.bin is a Git LFS pointer"),
    "no pickle": (lambda f: as_bin(f, b"hello"), ModelRefused, "pytorch_model.bin is damaged, or holds more than tens"),
    "a pickle with code": (trapped, ModelRefused, "Djinn runs no code to read a file; save the model as safetensors"),
    "a shard is missing": (without_a_shard, ModelRefused, "model-00002-of-00005.safetensors is missing; copy or down"),
    "an index that is none": (broken_index, ModelRefused, "model.safetensors.index.json is not JSON"),
    "a link to nowhere": (
        lambda f: (weights(f).unlink(), weights(f).symlink_to(f / "gone")), ModelRefused, "leads nowhere"
    ),
    "no weights": (lambda f: weights(f).unlink(), ModelNotFound, "no weights .*random_weights=True"),
    "config is a list": (lambda f: (f / "config.json").write_text("[1]"), ModelRefused, "a list where fields are due"),
    "config without a type": (lambda f: (f / "config.json").write_text("{}"), ModelRefused, "names no model_type"),
    "a field of another kind": (lambda f: fields(f, hidden_size="many"), ModelRefused, "'hidden_size' expected int"),
    "a field of no sense": (lambda f: fields(f, num_attention_heads=0), ModelRefused, "configuration .*cannot be read"),
    "beyond all memory": (lambda f: fields(f, hidden_size=10**11), ModelDoesNotFit, "no main memory"),
    "another size": (
        lambda f: fields(f, intermediate_size=64),
        ModelRefused,
        r"layers\.0\.mlp\.down_proj\.weight is 32 x 48 in the checkpoint and 32 x 64 by the configuration, one of 24",
    ),
    "GGUF": (
        lambda f: weights(f).rename(f / "model.Q4_K_M.gguf"),
        ModelRefused,
        r"The folder .* has GGUF files; give one of them: .*/model\.Q4_K_M\.gguf\.",
    ),
    "an adapter alone": (adapter_alone, ModelRefused, "an adapter of some/base and no model .*merge_and_unload"),
}  # fmt: skip
LEFT_OVER: dict[str, tuple[Spoil, str]] = {
    "scales of fp8": (fp8, r"112 .*q_proj\.weight_scale|down_proj\.weight_scale.* quantized by modelopt, which the"),
    "layers beyond the last": (lambda f: fields(f, num_hidden_layers=6), r"18 weights .*model\.layers\.6\."),
    "an adapter's matrix": (add("model.layers.0.self_attn.q_proj.lora_A.default.weight", 4, 32), "lora_A"),
    "a classifier's head": (classifier, r"1 weight that LlamaForCausalLM has no place for, such as score\.weight"),
    "a norm more": (add("model.layers.2.mlp.norm.weight", 32), r"model\.layers\.2\.mlp\.norm\.weight"),
}


@pytest.mark.parametrize("case", UNREADABLE)
def test_a_folder_that_cannot_be_read_is_answered_in_one_sentence(folder: Path, case: str) -> None:
    spoil, error, says = UNREADABLE[case]
    spoil(folder)
    with pytest.raises(error, match=says) as raised:
        load_model(EngineConfig(model=str(folder), device="cpu"))
    assert "\n" not in str(raised.value)
    assert "neither demo" not in str(raised.value)


@pytest.mark.parametrize("case", LEFT_OVER)
def test_weights_that_the_language_part_would_have_used_are_refused_by_name(folder: Path, case: str) -> None:
    spoil, says = LEFT_OVER[case]
    spoil(folder)
    with pytest.raises(ModelRefused, match=says) as raised:
        load_model(EngineConfig(model=str(folder), device="cpu"))
    assert "such as" in str(raised.value)


def test_weights_that_are_no_numbers_are_named(folder: Path) -> None:
    state(folder, lambda held: held["model.layers.3.mlp.up_proj.weight"][0, 0].fill_(torch.nan))
    with pytest.raises(ModelRefused, match=r"damaged: model\.layers\.3\.mlp\.up_proj\.weight holds NaN"):
        layers_of(folder)


def test_a_dtype_that_does_not_reach_far_enough_is_named(folder: Path) -> None:
    """Every weight is within the dtype's range, and the third layer's output is not."""
    state(folder, lambda held: held["model.layers.2.mlp.up_proj.weight"].mul_(300))
    state(folder, lambda held: held["model.layers.2.mlp.down_proj.weight"].mul_(30_000))
    layers_of(folder)
    with pytest.raises(ModelRefused, match=r"in float16: .* what model\.layers\.2 returns is not\. Load it in"):
        layers_of(folder, dtype="float16")


@pytest.mark.parametrize(
    ("text", "says"),
    [("{nonsense", "tokenizer.json is not JSON"), (LFS, "tokenizer.json is a Git LFS pointer"), ("{}", "")],
)
def test_a_model_whose_tokenizer_cannot_be_read_is_served_in_token_ids(folder: Path, text: str, says: str) -> None:
    (folder / "tokenizer.json").write_text(text)
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "PreTrainedTokenizerFast"}))
    loaded = load_model(EngineConfig(model=str(folder), device="cpu"))
    assert loaded.tokenizer is None
    (note,) = loaded.notes
    assert note.startswith("Its tokenizer cannot be read, so prompts are lists of token ids: ")
    assert says in note


def test_a_file_is_answered_with_what_to_give_instead(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelNotFound, match="is a file; give the folder that it lies in"):
        load_model(EngineConfig(model=str(weights(folder))))
    with pytest.raises(ModelNotFound, match=r"There is no file .*: hf download OWNER/MODEL FILE\.gguf --local-dir \."):
        load_model(EngineConfig(model=str(tmp_path / "absent.gguf")))


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("model-00001-of-00003.gguf", b"GGUF", r"one part of several; join them with llama\.cpp: llama-gguf-split"),
        ("model.gguf", LFS.encode(), r"is a Git LFS pointer .* `git lfs pull`"),
        ("model.gguf", b"PK\x03\x04", r"model\.gguf is no GGUF file; copy or download it again"),
    ],
)
def test_a_gguf_file_that_is_none_is_refused(name: str, content: bytes, says: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ModelRefused, match=says):
        load_model(EngineConfig(model=str(tmp_path / name)))


def test_a_folder_with_weights_of_its_own_may_have_a_gguf_file_too(folder: Path) -> None:
    torch.save(dict(load_file(weights(folder))), folder / "pytorch_model.bin")
    weights(folder).unlink()
    (folder / "model.Q4_0.gguf").write_bytes(b"GGUF")
    assert load_model(EngineConfig(model=str(folder), device="cpu")).source == str(folder)


def test_a_folder_may_be_called_like_a_gguf_file(folder: Path) -> None:
    named = folder.rename(folder.with_name("model.gguf"))
    assert load_model(EngineConfig(model=str(named), device="cpu")).source == str(named)


def test_quantized_weights_without_their_library_are_answered_with_the_extra(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def absent(name: str) -> str:
        raise PackageNotFoundError(name)

    monkeypatch.setattr(quantized, "version", absent)
    (tmp_path / "model.gguf").write_bytes(b"GGUF")
    install = r", not installed here: pip install 'djinn-jupyter\[quantized\]'\.$"
    with pytest.raises(MissingDependency, match=f"needs gguf and accelerate{install}"):
        load_model(EngineConfig(model=str(tmp_path / "model.gguf")))
    with pytest.raises(MissingDependency, match=f"needs torchao{install}"):
        load_model(EngineConfig(model=str(folder), quantize="int8"))
    for said, needs in (
        ({"quant_method": "fp8"}, "accelerate"),
        ({"quant_method": "compressed-tensors"}, "compressed-tensors"),
        ({"quant_method": "torchao"}, "torchao"),
        ({"load_in_8bit": True, "quant_method": "bitsandbytes"}, "bitsandbytes and accelerate"),
    ):
        fields(folder, quantization_config=said)
        with pytest.raises(MissingDependency, match=f"needs {needs}{install}"):
            load_model(EngineConfig(model=str(folder)))


def test_an_adapter_beside_a_model_is_never_ignored(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without peft transformers would load the model alone, with peft the two, and say neither."""
    adapter(folder)
    monkeypatch.setattr(pretrained, "is_peft_available", lambda: False)
    with pytest.raises(MissingDependency, match=r"An adapter lies beside .*`pip install peft` .* move that file away"):
        load_model(EngineConfig(model=str(folder), device="cpu"))
    monkeypatch.setattr(pretrained, "is_peft_available", lambda: True)
    monkeypatch.setattr(pretrained, "_from_pretrained", lambda *asked: (build("llama"), REPORT))
    assert load_model(EngineConfig(model=str(folder), device="cpu")).notes == (
        "The adapter that lies beside the model (adapter_config.json) is applied.",
    )


REPORT: dict[str, set[str]] = {"missing_keys": set(), "mismatched_keys": set(), "unexpected_keys": set()}
