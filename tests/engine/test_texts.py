"""Texts and towers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, models
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast

from djinn_jupyter.widgets.views import result_view, stop_view
from djinn_jupyter.wire import replies as told
from djinn_jupyter.wire import requests as ask
from tests.engine.desk import Desk, build_desk, tokens
from tests.engine.model.test_tokenizer import byte_level, metaspace
from tests.engine.plain import generate
from tests.families import VOCAB, WITH_TOWERS, build, configuration

PROMPTS = ("مرحبا بالعالم", "שלום עולם", "Hi \U0001f44d\U0001f3fd there", "The capital of Köln")


@pytest.fixture(scope="module", params=["byte level", "metaspace"])
def kind(request: Any) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def desk(kind: str) -> Iterator[Desk]:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        config = configuration("llama", 2)
        config.vocab_size = 400
        model = AutoModelForCausalLM.from_config(config).eval().requires_grad_(False)
    desk = build_desk(model, {"byte level": byte_level, "metaspace": metaspace}[kind]())
    yield desk
    desk.close_all()


@pytest.mark.parametrize("prompt", PROMPTS)
def test_a_prompt_of_any_script_is_shown_as_it_was_written(desk: Desk, kind: str, prompt: str) -> None:
    desk.open()
    done = desk.ask(ask.Run(session="a", text=prompt, max_new_tokens=6, ignore_eos=True))
    assert done.prompt_text == prompt
    if kind == "byte level":  # to sentencepiece, bytes that are no text make those before them unreadable
        assert prompt + done.text == desk.engine.tokenizer.decode([*done.prompt_tokens, *done.tokens])
        streamed = "".join(e.text for e in desk.events[-8:] if isinstance(e, told.TokenSampled))
        assert done.text.startswith(streamed)
    assert not any("\ufffd" in text for text in (*done.prompt_texts, *done.texts, *(top.text for top in done.top)))
    view = result_view(done)
    assert prompt in view.plain
    assert prompt in str(view.html)


def test_a_stop_in_the_midst_of_a_character_has_the_whole_text(desk: Desk) -> None:
    desk.open()
    desk.stop_at(0, when="step == 0")
    tokens = tuple(desk.engine.tokenizer.encode(PROMPTS[0]))[:-1]
    stop = desk.run(tokens, 1)
    assert stop.prompt_text == PROMPTS[0][:-1]
    assert set(stop.new_text) == {"\ufffd"}
    assert stop.texts[-1].startswith("<0x")


def test_a_token_that_the_tokenizer_lacks_reads_as_its_number_wherever_it_is_shown() -> None:
    known = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.WordLevel({"a": 0, "b": 1}, unk_token="a")))
    desk = build_desk(build("llama", layers=2), known)
    desk.open()
    desk.stop_at(0, when="step == 0")
    stop = desk.run((VOCAB - 1, 1), 2)
    lens = desk.ask(ask.Lens(session="a", top=3))
    done = desk.ask(ask.Resume(session="a"))
    lacking = f"<{VOCAB - 1}>"
    assert (stop.texts[0], stop.prompt_text[: len(lacking)], done.prompt_texts[0]) == (lacking,) * 3
    assert lens.rows[0].text == lacking
    streamed = "".join(event.text for event in desk.events if isinstance(event, told.TokenSampled))
    assert (streamed, "".join(done.texts)) == (done.text, done.text)
    read = [(one.token, one.text) for one in (*done.top, *(top for row in lens.rows for top in row.top))]
    assert [text for token, text in read if token > 1] == [f"<{token}>" for token, _ in read if token > 1]
    for view in (stop_view(stop), result_view(done)):
        assert lacking in view.plain
        assert lacking.replace("<", "&lt;").replace(">", "&gt;") in str(view.html)
    desk.close_all()


SOME = ("qwen2_vl", "mllama")
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
