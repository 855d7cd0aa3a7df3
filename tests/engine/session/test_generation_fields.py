"""Every field of `generation_config.json` is in the table, and each that a text depends on is applied or told."""

from __future__ import annotations

import inspect
import re
from typing import Any

import pytest
from transformers import GenerationConfig, GenerationMixin

from djinn_jupyter.engine.process.describe import generation_defaults
from djinn_jupyter.engine.session.generation import GENERATION
from tests.engine.desk import desk_of

TOLD: dict[str, Any] = {
    "num_beams": 3, "stop_strings": ["a"], "penalty_alpha": 0.6, "token_healing": True, "guidance_scale": 2.0,
    "max_time": 3.0, "encoder_repetition_penalty": 1.2, "dola_layers": "high", "an_option_of_tomorrow": 4,
    "min_new_tokens": 2, "sequence_bias": [[[3], 1.0]], "forced_eos_token_id": 3, "top_h": 0.4,
    "exponential_decay_length_penalty": (3, 1.2), "renormalize_logits": True, "remove_invalid_values": True,
}  # fmt: skip


def test_every_field_of_transformers_is_in_the_table() -> None:
    assert not GENERATION.unknown(GenerationConfig().to_dict())


def test_every_field_that_chooses_processors_is_computed_or_told() -> None:
    source = inspect.getsource(GenerationMixin._get_logits_processor)
    read = set(re.findall(r"generation_config\.([a-z]\w*)", source)) - {"num_beams", "use_cache", "max_length"}
    assert len(read) > 20
    assert read - GENERATION.computed - set(GENERATION.refused) == set()


@pytest.mark.parametrize("name", TOLD)
def test_a_plain_run_is_told_each_setting_that_generate_would_apply(name: str) -> None:
    desk = desk_of("llama")
    settings = desk.engine.model.generation_config
    setattr(settings, name, TOLD[name])
    try:
        assert generation_defaults(desk.engine.model) == {name: str(TOLD[name])}
    finally:
        vars(settings).pop(name) if name == "an_option_of_tomorrow" else setattr(settings, name, None)
