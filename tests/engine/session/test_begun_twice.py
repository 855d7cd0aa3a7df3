"""A line that begins twice with the tokenizer's first token, or ends with its last: the run says so once, and computes
what it is given."""

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

CLOSED = (
    "The prompt ends with '</s>', which the tokenizer adds behind a text: the last position is that token's, and the "
    "model goes on behind it. Give token ids without it to go on from the text."
)


def wrapping(template: str) -> PreTrainedTokenizerFast:
    """Return a tokenizer that puts these tokens around a text."""
    inner = Tokenizer(
        models.WordLevel(
            {"<s>": 0, "a": 1, "</s>": 3, **{f"w{n}": n for n in range(2, VOCAB) if n != 3}}, unk_token="w2"
        )
    )
    inner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    inner.post_processor = processors.TemplateProcessing(single=template, special_tokens=[("<s>", 0), ("</s>", 3)])
    return PreTrainedTokenizerFast(tokenizer_object=inner, bos_token="<s>")


@pytest.fixture(scope="module")
def desk() -> Iterator[Desk]:
    with one_thread():
        yield build_desk(build("llama", layers=2), wrapping("<s> $A"))


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


def test_a_prompt_that_ends_with_what_the_tokenizer_adds_is_told() -> None:
    desk = build_desk(build("llama", layers=2), wrapping("<s> $A </s>"))
    desk.open()
    done = desk.ask(ask.Run(session="a", text="w5 w6", max_new_tokens=2, ignore_eos=True))
    assert (done.prompt_tokens, done.note) == ((0, 5, 6, 3), CLOSED)
    desk.open("b")
    assert desk.ask(ask.Run(session="b", tokens=(0, 5, 6), max_new_tokens=2, ignore_eos=True)).note is None
