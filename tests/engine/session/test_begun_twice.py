"""A line that begins twice with the tokenizer's first token: the run says so once, and computes what it is given."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from djinn_jupyter.wire import requests as ask
from tests.engine.desk import Desk, build_desk
from tests.families import VOCAB, build
from tests.threads import one_thread

NOTE = (
    "The line begins with '<s>' twice: the tokenizer adds one to a text, also where the text has one. Leave it out of "
    "the text, or give token ids."
)


@pytest.fixture(scope="module")
def desk() -> Iterator[Desk]:
    inner = Tokenizer(models.WordLevel({"<s>": 0, "a": 1, **{f"w{n}": n for n in range(2, VOCAB)}}, unk_token="w2"))
    inner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    inner.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    with one_thread():
        yield build_desk(build("llama", layers=2), PreTrainedTokenizerFast(tokenizer_object=inner, bos_token="<s>"))


@pytest.mark.parametrize(
    ("text", "tokens", "note"),
    [("w5 w6", (0, 5, 6), None), ("<s> w5 w6", (0, 0, 5, 6), NOTE), ("w5 <s> <s>", (0, 5, 0, 0), None)],
)
def test_a_run_says_so_and_computes_the_line_as_it_is(
    desk: Desk, text: str, tokens: tuple[int, ...], note: str | None
) -> None:
    desk.open()
    done = desk.ask(ask.Run(session="a", text=text, max_new_tokens=2))
    assert (done.prompt_tokens, done.note) == (tokens, note)
    assert desk.ask(ask.Run(session="a", text="w7", extend=True, max_new_tokens=1)).note is None  # once
    desk.open("b")
    given = desk.ask(ask.Run(session="b", tokens=tokens, max_new_tokens=2))
    assert (given.top, given.tokens, given.log_probabilities) == (done.top, done.tokens, done.log_probabilities)


def test_a_text_that_is_run_again_is_told(desk: Desk) -> None:
    desk.open()
    done = desk.ask(ask.Run(session="a", text="w5", max_new_tokens=2))
    again = desk.ask(ask.Run(session="a", text=done.prompt_text + done.text, max_new_tokens=0))
    assert (again.prompt_tokens[:3], again.note) == ((0, 0, 5), NOTE)
    fast = desk.ask(ask.Run(session="a", text="<s> w5", max_new_tokens=1, mode="fast"))
    assert fast.note.startswith(NOTE)
