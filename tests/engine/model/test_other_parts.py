"""Checkpoints with a tower for images or sound: the class that reads them, the parts left out, and the refusals."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForMultimodalLM, Qwen2_5OmniConfig

from djinn_jupyter.engine.model.loading.load import LoadedModel, load_model
from djinn_jupyter.engine.model.loading.other_parts import LeftOut, leave_out, other_parts
from djinn_jupyter.engine.process.build import open_engine
from djinn_jupyter.engine.system.config import EngineConfig
from djinn_jupyter.errors import ModelRefused
from tests.families import build, configuration


def saved(name: str, where: Path, **more: torch.Tensor) -> LoadedModel:
    """A tiny model as its own class saves it, with `more` in the file, loaded from there."""
    build(name).save_pretrained(where)
    if more:
        path = where / "model.safetensors"
        save_file({**load_file(path), **{key.replace("__", "."): value.clone() for key, value in more.items()}}, path)
    return load_model(EngineConfig(model=str(where), device="cpu"))


@pytest.mark.parametrize(
    ("name", "read_as", "left_out"),
    [
        ("llava", "LlavaForConditionalGeneration", r"model\.vision_tower \(39 weights\)"),
        ("qwen2_audio", "Qwen2AudioForConditionalGeneration", r"model\.audio_tower \(\d+ weights\)"),
        ("llama4", "Llama4ForCausalLM", r"multi_modal_projector \(1 weight\), vision_model \(\d+ weights\)"),
        ("qwen3_5", "Qwen3_5ForCausalLM", r"model\.visual \(\d+ weights\)"),
        ("audioflamingo3", "AudioFlamingo3ForConditionalGeneration", r"model\.audio_tower \(\d+ weights\)"),
        ("emu3", "Emu3ForConditionalGeneration", r"model\.vqmodel \(\d+ weights\)"),
    ],
)
def test_a_checkpoint_with_a_tower_is_read_whole_and_says_what_is_left_out(
    tmp_path: Path, name: str, read_as: str, left_out: str
) -> None:
    """Llama 4's tower is unexpected to its causal class, Qwen 3.5's is declared as ignored, Audio Flamingo is built as
    if it were an encoder-decoder, and Emu3's causal class finds none of its weights by their names."""
    loaded = saved(name, tmp_path)
    assert type(loaded.model).__name__ == read_as
    (note,) = loaded.notes
    assert re.search(left_out, note)


LEFT_OUT = re.compile(r"(model\.)?visual \(\d+ weights\)")
"""The name of a thinker's tower in the note: older releases of transformers have it beside the model."""


def test_of_a_thinker_and_a_talker_the_thinker_is_served(tmp_path: Path) -> None:
    """Their class has no forward of its own; and it wants a file of speakers, which a text does not need."""
    thinker = configuration("qwen2_5_omni_thinker")
    whole = AutoModelForMultimodalLM.from_config(
        Qwen2_5OmniConfig(thinker_config=thinker.to_dict(), enable_audio_output=False)
    )
    spoken = {"talker.model.embed_tokens.weight": torch.ones(4, 4), "token2wav.code2wav_bigvgan_model.w": torch.ones(1)}
    whole.save_pretrained(tmp_path, state_dict={**whole.state_dict(), **spoken})
    loaded = load_model(EngineConfig(model=str(tmp_path), device="cpu"))
    assert type(loaded.model).__name__ == "Qwen2_5OmniThinkerForConditionalGeneration"
    weights = whole.thinker.state_dict()
    assert all(torch.equal(value, weights[name]) for name, value in loaded.model.state_dict().items())
    assert LEFT_OUT.search(loaded.notes[0])
    assert re.search(r"talker \(1 weight\), token2wav \(1 weight\)", loaded.notes[0])


def test_what_is_left_over_beside_the_text_is_left_out_and_within_it_refused(tmp_path: Path) -> None:
    scale = torch.ones(1)
    beside = saved("llava", tmp_path / "beside", model__vision_tower__scale=scale, new_tower__norm__weight=scale)
    assert "new_tower (1 weight)" in beside.notes[0]
    with pytest.raises(ModelRefused, match=r"language_model\.layers\.3\.mlp\.up_proj\.weight_scale"):
        saved("llava", tmp_path / "within", model__language_model__layers__3__mlp__up_proj__weight_scale=scale)
    with pytest.raises(ModelRefused, match=r"model\.language_model\.layers\.8\."):
        saved("llava", tmp_path / "more", model__language_model__layers__8__mlp__up_proj__weight=scale)


def test_a_part_that_is_left_out_has_no_weights_and_still_says_where_it_is() -> None:
    model = build("qwen2_audio")
    tower = other_parts(model)["model.audio_tower"]
    weights = sum(parameter.numel() for parameter in model.parameters())
    leave_out(model)
    stand_in = model.get_submodule("model.audio_tower")
    assert isinstance(stand_in, LeftOut)
    assert (stand_in.config, stand_in.dtype, stand_in.device) == (tower.config, tower.dtype, tower.device)
    assert sum(parameter.numel() for parameter in model.parameters()) == weights - tower.num_parameters()
    assert other_parts(model) == {}
    with pytest.raises(ValueError, match=r"runs model\.audio_tower also without an image or sound"):
        stand_in(torch.ones(1))


def test_a_model_without_towers_is_left_as_it_is() -> None:
    model = build("llama")
    before = list(model.named_modules())
    assert leave_out(model) is model
    assert list(model.named_modules()) == before


def test_what_is_left_out_is_told_while_loading_and_in_the_description(tmp_path: Path) -> None:
    """It is told also after sleep, which loads the weights anew."""
    whole = build("llava")
    whole.save_pretrained(tmp_path)
    said: list[str] = []
    engine = open_engine(EngineConfig(model=str(tmp_path), device="cpu", page_positions=16), progress=said.append)
    (note,) = engine.description.notes
    assert note in said
    tower = other_parts(whole)["model.vision_tower"]
    assert engine.description.parameters == whole.num_parameters() - tower.num_parameters()
    before = engine.forward.lens(torch.ones(1, 32))
    engine.weights.sleep()
    assert torch.equal(engine.forward.lens(torch.ones(1, 32)), before)
