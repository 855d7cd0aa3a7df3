"""The language part of models with images or sound, stopped at every layer, against the whole model in plain Hugging
Face: its tower is there, and is not run."""

from __future__ import annotations

import pytest

from tests.engine.desk import build_desk, tokens
from tests.engine.plain import generate
from tests.families import WITH_TOWERS, build

SOME = ("llava", "qwen2_vl", "qwen2_audio", "gemma3", "mllama")
PROMPT = tokens(14)
NEW = 5


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name in SOME else pytest.mark.slow) for name in WITH_TOWERS]
)
def test_the_language_part_is_the_whole_models_text_pass_at_every_layer(name: str) -> None:
    plain = generate(build(name), PROMPT, NEW)
    desk = build_desk(build(name))
    desk.open()
    assert desk.outcome(desk.run(PROMPT, NEW)) == plain
    for layer in range(desk.layers):
        desk.clear()
        desk.stop_at(f"resid_post.{layer}", f"step == {layer % 3}")
        desk.run(PROMPT, NEW)
        desk.edit()
        desk.resume()
        desk.back()
        assert desk.outcome(desk.resume()) == plain, layer
    desk.close_all()
