"""A model that cannot be served exactly is refused at load, by name and with the reason."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM, T5Config, T5ForConditionalGeneration

from djinn_jupyter.engine.memory.kv.cache import PagedCache
from djinn_jupyter.engine.memory.kv.layers import PagedFullLayer
from djinn_jupyter.engine.passes.controller import PassController
from djinn_jupyter.engine.process.build import open_engine
from djinn_jupyter.engine.system.config import EngineConfig
from djinn_jupyter.errors import ModelRefused
from tests.engine import proofs
from tests.engine.desk import build_desk, tokens
from tests.engine.plain import generate
from tests.engine.variants import called_twice, nondeterministic, remembering
from tests.families import REFUSED, build


@pytest.fixture(autouse=True)
def tested_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take no proof of an earlier engine: what a test plants into the engine is in no key."""
    monkeypatch.setattr(proofs, "PROOFS", {})


def refused(model: Any) -> str:
    with pytest.raises(ModelRefused) as raised:
        build_desk(model)
    text = str(raised.value)
    assert text.startswith(f"{type(model).__name__} cannot be served exactly: "), text
    assert any(what_to_do in text for what_to_do in ("forward hooks", "--attention eager", "config.json")), text
    assert text.endswith("."), text
    return text


def test_a_cache_that_hands_back_other_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    sound = PagedFullLayer.update

    def broken(self: PagedFullLayer, keys: Tensor, values: Tensor, *rest: Any, **options: Any) -> Any:
        keys, values = sound(self, keys, values, *rest, **options)
        if self.geometry.cache_layer == 5:
            values = values * (1 + 2**-20)
        return keys, values

    monkeypatch.setattr(PagedFullLayer, "update", broken)
    assert "uninterrupted run equals generate" in refused(build("llama"))


def test_a_cache_that_forgets_recurrent_states(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PagedCache, "restore_all", lambda self, captured: None)
    assert "self-test failed at 'stop" in refused(build("mamba2"))


def test_a_gate_that_leaves_at_the_wrong_place(monkeypatch: pytest.MonkeyPatch) -> None:
    leave = PassController._leave

    def early(self: PassController, boundary: int, *rest: Any) -> None:
        leave(self, max(0, boundary - 1), *rest)

    monkeypatch.setattr(PassController, "_leave", early)
    assert "the self-test" in refused(build("llama"))


def test_a_layer_with_noise() -> None:
    assert "forward is deterministic" in refused(nondeterministic(build("llama")))


def test_a_layer_that_is_called_twice() -> None:
    assert "layer 2 caches" in refused(called_twice(build("llama")))


def test_a_module_that_remembers() -> None:
    assert "depends on" in refused(remembering(build("llama")))


def test_heads_of_uneven_width_are_exact_or_refused() -> None:
    """Fused attention gives them other bits at another place in memory on some processors, and not on others."""
    width = 6
    model = small_llama(head_dim=width)
    if is_served(model):
        assert_exact_at_every_length(model, small_llama(head_dim=width))
    else:
        assert f"heads are {width} numbers wide" in refused(model)
    model.set_attn_implementation("eager")
    build_desk(model)


def assert_exact_at_every_length(model: Any, plain: Any, lengths: int = 24) -> None:
    desk = build_desk(model)
    desk.open()
    for length in range(1, lengths):
        prompt = tokens(length)
        assert desk.outcome(desk.run(prompt, 2)) == generate(plain, prompt, 2), length


def test_a_model_with_fewer_positions_than_the_self_test_takes() -> None:
    assert "it has 12 positions, and the load-time self-test takes 13" in refused(
        small_llama(max_position_embeddings=12)
    )
    build_desk(small_llama(max_position_embeddings=13))


def is_served(model: Any) -> bool:
    try:
        build_desk(model)
    except ModelRefused:
        return False
    return True


def small_llama(**fields: int) -> Any:
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 8, "num_attention_heads": 4}
    sizes["num_key_value_heads"] = 2
    return LlamaForCausalLM(LlamaConfig(**{**sizes, "vocab_size": 128, **fields})).eval()


def test_an_encoder_decoder() -> None:
    refused(
        T5ForConditionalGeneration(T5Config(d_model=32, d_ff=48, num_layers=8, num_heads=4, d_kv=8, vocab_size=128))
    )


def test_an_encoder_decoder_from_a_folder(tmp_path: Path) -> None:
    T5Config(d_model=32).save_pretrained(tmp_path)
    with pytest.raises(ModelRefused, match="is an encoder-decoder; only decoder-only language models"):
        open_engine(EngineConfig(model=str(tmp_path), random_weights=True))


@pytest.mark.parametrize("family", REFUSED)
def test_families_without_a_cache_of_their_callers(family: str) -> None:
    refused(REFUSED[family]())
