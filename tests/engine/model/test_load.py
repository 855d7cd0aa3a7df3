"""Loading: from a configuration to a model in memory, and every way in which loading fails."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig, BertConfig, T5Config

from djinn_evaluation.baselines.weights import device_for
from djinn_evaluation.machine import computed_on
from djinn_jupyter.engine.memory.kv.geometry import probe_geometry
from djinn_jupyter.engine.memory.weights.residence import ResidentWeights
from djinn_jupyter.engine.model.discovery.model_map import discover
from djinn_jupyter.engine.model.loading import hub
from djinn_jupyter.engine.model.loading.load import choose_device, load_model
from djinn_jupyter.engine.process.describe import describe
from djinn_jupyter.engine.system.config import EngineConfig
from djinn_jupyter.errors import DjinnError, MissingDependency, ModelNotFound, ModelRefused, UsageError
from djinn_jupyter.wire import requests as ask
from tests.engine.desk import build_desk, tokens
from tests.families import build


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A tiny Llama, saved without a tokenizer."""
    where = tmp_path_factory.mktemp("llama")
    model = build("llama")
    model.generation_config.temperature = 0.6
    model.generation_config.do_sample = True
    model.generation_config.eos_token_id = [2, 7]
    model.save_pretrained(where)
    return str(where)


def config_only(where: Path, configuration: dict[str, object]) -> str:
    (where / "config.json").write_text(json.dumps(configuration))
    return str(where)


def test_a_folder_is_loaded_as_it_was_saved(folder: str) -> None:
    loaded = load_model(EngineConfig(model=folder, device="cpu"))
    original = build("llama").state_dict()
    assert loaded.tokenizer is None
    assert loaded.dtype == torch.float32
    assert not loaded.model.training
    assert not any(parameter.requires_grad for parameter in loaded.model.parameters())
    assert all(torch.equal(tensor, original[name]) for name, tensor in loaded.model.state_dict().items())


def test_dtype_and_attention_are_as_asked(folder: str) -> None:
    loaded = load_model(EngineConfig(model=folder, device="cpu", dtype="bf16", attention="eager"))
    assert loaded.dtype == torch.bfloat16
    assert loaded.model.config._attn_implementation == "eager"


@pytest.mark.parametrize(
    ("family", "outputs"),
    [
        ("mixtral", {"output_router_logits": True}),
        ("llama", {"return_dict": False}),
        ("llama", {"output_hidden_states": True, "output_attentions": True}),
    ],
)
def test_outputs_that_a_training_asked_for_are_not_made(family: str, outputs: dict[str, bool], tmp_path: Path) -> None:
    """Both are read from the file: how weights lie in memory decides bits of a matrix times a vector on some CPUs."""
    build(family, layers=2).save_pretrained(tmp_path)
    config = EngineConfig(model=str(tmp_path), device="cpu")
    plain = build_desk(load_model(config).model)
    config_only(tmp_path, json.loads((tmp_path / "config.json").read_text()) | outputs)
    model = load_model(config).model
    told = build_desk(model)
    assert set(model(torch.tensor([[3, 4]], device=model.device))) == {"logits", "past_key_values"}
    for desk in (plain, told):
        desk.open()
        desk.stop_at("resid_post.1")
        desk.run(tokens(9))
    lens = ask.Lens(session="a")
    assert told.ask(lens).rows == plain.ask(lens).rows
    assert told.outcome(told.resume(free=True)) == plain.outcome(plain.resume(free=True))


def test_an_attention_that_is_not_installed_is_refused_with_the_way_around_it(folder: str, tmp_path: Path) -> None:
    where = Path(shutil.copytree(folder, tmp_path / "model"))
    said = json.loads((where / "config.json").read_text())
    asking = config_only(where, {**said, "attn_implementation": "flash_attention_2"})
    with pytest.raises(MissingDependency, match=r"Its config\.json asks for it; load it with --attention sdpa"):
        load_model(EngineConfig(model=asking, device="cpu"))
    loaded = load_model(EngineConfig(model=asking, device="cpu", attention="sdpa"))
    assert loaded.model.config._attn_implementation == "sdpa"


def test_weights_are_drawn_from_the_seed_and_torchs_own_generator_is_left_alone(folder: str) -> None:
    before = torch.get_rng_state()
    wish = EngineConfig(model=folder, device="cpu", random_weights=True, random_seed=3)
    one, same = load_model(wish).model, load_model(wish).model
    other = load_model(EngineConfig(model=folder, device="cpu", random_weights=True, random_seed=4)).model
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(one.lm_head.weight, same.lm_head.weight)
    assert not torch.equal(one.lm_head.weight, other.lm_head.weight)


def test_a_configuration_alone_is_enough_to_draw_weights(folder: str, tmp_path: Path) -> None:
    alone = config_only(tmp_path, json.loads((Path(folder) / "config.json").read_text()))
    assert load_model(EngineConfig(model=alone, device="cpu", random_weights=True)).model.num_parameters() > 0
    with pytest.raises(ModelNotFound, match="--random-weights"):
        load_model(EngineConfig(model=alone, device="cpu"))


def test_weights_that_a_checkpoint_lacks_are_never_made_up(folder: str, tmp_path: Path) -> None:
    broken = build("llama")
    state = {name: tensor for name, tensor in broken.state_dict().items() if "layers.3.mlp" not in name}
    broken.save_pretrained(tmp_path, state_dict=state)
    with pytest.raises(ModelRefused, match=r"lacks 3 of the weights .* model\.layers\.3\.mlp"):
        load_model(EngineConfig(model=str(tmp_path), device="cpu"))


@pytest.mark.parametrize(
    ("said", "name", "most"),
    [
        ({"num_hidden_layers": 10**7}, "num_hidden_layers 10000000", "1,000 layers"),
        ({"n_layer": 10**30}, "n_layer 1000000000", "1,000 layers"),
        ({"text_config": {"num_hidden_layers": 1001}}, "num_hidden_layers 1001", "1,000 layers"),
        ({"num_local_experts": 10**9}, "num_local_experts 1000000000", "100,000 experts"),
    ],
)
def test_a_model_of_millions_of_layers_is_refused_before_it_is_built(
    folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: dict[str, Any], name: str, most: str
) -> None:
    monkeypatch.setattr(AutoConfig, "from_pretrained", None)  # which makes a list of all layers
    config = json.loads((Path(folder) / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | said))
    with pytest.raises(ModelRefused, match=f"has {name}.*; models of at most {most} are loaded"):
        load_model(EngineConfig(model=str(tmp_path), device="cpu"))


def test_the_description_says_what_is_served(folder: str) -> None:
    loaded = load_model(EngineConfig(model=folder, device="cpu"))
    geometry = probe_geometry(loaded.model, loaded.device)
    weights = ResidentWeights(loaded.model, loaded.device)
    said = describe(loaded, discover(loaded.model), geometry, (), weights.total, token_by_token=True)
    assert (said.layers, said.hidden_size, said.vocab_size, said.context_length) == (8, 32, 128, 512)
    assert (said.dtype, said.attention, said.architecture) == ("float32", "sdpa", "LlamaForCausalLM")
    assert said.eos_token_ids == (2, 7)
    assert said.generation_defaults == {"do_sample": "True", "temperature": "0.6"}
    assert said.feeding == "token by token"
    assert said.weight_bytes == 4 * said.parameters + sum(b.nbytes for b in loaded.model.buffers())
    assert not said.has_tokenizer


def test_a_gpu_is_known_by_its_index_as_tensors_have_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """`cuda` and `cuda:0` are two devices when they are compared, and some of CUDA's calls need the index."""
    monkeypatch.delenv("DJINN_DEVICE", raising=False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert [choose_device(name) for name in (None, "cuda", "cuda:1", "cpu")] == [
        torch.device("cuda", 0),
        torch.device("cuda", 0),
        torch.device("cuda", 1),
        torch.device("cpu"),
    ]


@pytest.mark.parametrize("name", ["meta", "xpu", "xpu:1", "vulkan"])
def test_other_devices_of_torch_are_refused(name: str) -> None:
    with pytest.raises(UsageError, match=rf"^{name} is no device of an engine; write cpu, cuda or cuda:1\.$"):
        choose_device(name)


def test_without_a_name_the_device_of_the_environment_is_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setenv("DJINN_DEVICE", "cpu")
    assert [choose_device(None), choose_device("cuda:1")] == [torch.device("cpu"), torch.device("cuda", 1)]
    assert [device_for(None).type, computed_on()] == ["cpu", "cpu"]


@pytest.mark.parametrize(
    ("wish", "error", "says"),
    [
        ({"model": "./nowhere"}, ModelNotFound, r"There is no folder \./nowhere"),
        ({"device": "cuda:7"}, UsageError, "There is no device cuda:7"),
        ({"device": "toaster"}, UsageError, "no device; write cpu"),
        ({"device": "cpu", "dtype": "int8"}, UsageError, "no dtype to serve a model in"),
    ],
)
def test_what_cannot_be_loaded_says_what_to_do(
    folder: str, wish: dict[str, str], error: type[DjinnError], says: str
) -> None:
    with pytest.raises(error, match=says):
        load_model(EngineConfig(**{"model": folder, **wish}))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("configuration", "says"),
    [
        (T5Config().to_dict(), "encoder-decoder"),
        ({"model_type": "vit"}, "not a causal language model"),
        ({"model_type": "no_such_family"}, "does not know the architecture"),
        (
            {"model_type": "own", "auto_map": {"AutoConfig": "own.Config", "AutoModelForCausalLM": "own.Model"}},
            "--trust-remote-code",
        ),
    ],
)
def test_what_is_no_decoder_of_the_library_is_refused(
    tmp_path: Path, configuration: dict[str, object], says: str
) -> None:
    where = config_only(tmp_path, configuration)
    with pytest.raises(ModelRefused, match=says):
        load_model(EngineConfig(model=where, device="cpu", random_weights=True))


def test_an_encoder_that_passes_for_a_decoder_is_refused_by_the_anatomy(tmp_path: Path) -> None:
    tiny = BertConfig(hidden_size=16, num_hidden_layers=8, num_attention_heads=2, intermediate_size=16, vocab_size=64)
    where = config_only(tmp_path, tiny.to_dict())
    loaded = load_model(EngineConfig(model=where, device="cpu", random_weights=True))
    with pytest.raises(ModelRefused, match="no causal language model"):
        discover(loaded.model)


def test_an_empty_folder_is_no_model(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFound, match=r"holds no config\.json"):
        load_model(EngineConfig(model=str(tmp_path)))


def test_without_network_the_cache_is_all_there_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(ModelNotFound, match="no network and nobody/nothing is not in the cache"):
        load_model(EngineConfig(model="nobody/nothing"))


@pytest.mark.parametrize(
    ("model", "revision"), [("Owner/Tiny", None), ("owner/tiny", "v2"), ("owner/tiny", "abcd"), ("OWNER/tiny", "main")]
)
def test_what_the_cache_holds_of_a_model_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, model: str, revision: str | None
) -> None:
    """Under another revision, a commit cut short, a name in another case."""
    commit = "abcd" * 10
    folder = tmp_path / "models--owner--tiny"
    for path, text in ((f"snapshots/{commit}/config.json", "{}"), ("refs/pr/1", commit), ("refs/v1", commit)):
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(ModelNotFound, match=rf"The cache has owner/tiny at {commit} \(pr/1, v1\): ask for that"):
        load_model(EngineConfig(model=model, revision=revision))


def test_a_hub_that_cannot_be_reached_is_asked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The library alone would ask six times for each file, with pauses between."""

    def no_route(address: tuple[str, int], timeout: float) -> None:
        tried.append(address)
        raise OSError("no route to host")

    tried: list[tuple[str, int]] = []
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    monkeypatch.setattr(hub, "getproxies", dict)
    monkeypatch.setattr(hub.socket, "create_connection", no_route)
    for _ in range(2):
        with pytest.raises(ModelNotFound, match="no network and nobody/nothing is not in the cache"):
            load_model(EngineConfig(model="nobody/nothing"))
    assert tried == [("huggingface.co", 443)]


@pytest.mark.parametrize("name", ["dmeo", "Demo", "demo "])
def test_a_slip_of_the_demos_name_is_answered_at_once(name: str) -> None:
    with pytest.raises(ModelNotFound, match="did you mean demo"):
        load_model(EngineConfig(model=name))
