"""A token that was named without its leading space is pointed out where the one with it is clearly the usual one."""

from __future__ import annotations

import pytest
import torch
from transformers import AutoTokenizer

from djinn_jupyter.engine.model.loading.source import DEMO
from djinn_jupyter.engine.model.loading.tokenizer import TokenText
from djinn_jupyter.engine.session.reports import LeadingSpaces, note_of

PARIS = "'Paris' is the token without a space before it"


@pytest.fixture(scope="module")
def texts() -> TokenText:
    return TokenText(AutoTokenizer.from_pretrained(DEMO))


def logits(texts: TokenText, **chances: float) -> torch.Tensor:
    """Return one row, in which tokens have these logits and all others none; `_Paris` is ` Paris`."""
    row = torch.zeros(1, 1393)
    for name, value in chances.items():
        row[0, texts.token_id(name.replace("_", " "))] = value
    return row


def test_a_condition_is_noted_where_the_word_is_mostly_written_with_a_space(texts: TokenText) -> None:
    assert note_of(texts, ["Paris"]) == f"{PARIS}; within a text the word is mostly ' Paris'."
    for name in (" Paris", "ing", "s", ".", "\n"):
        assert note_of(texts, [name]) is None, name


def test_a_lens_is_noted_where_the_spaced_token_is_clearly_more_probable(texts: TokenText) -> None:
    for row, told in ((logits(texts, _Paris=8.0), True), (logits(texts, Paris=8.0), False), (logits(texts), False)):
        seen = LeadingSpaces(texts, ["Paris", " Paris", 17])
        seen.see(row, [4])
        assert bool(seen.notes) == told
    seen = LeadingSpaces(texts, ["Paris"])
    seen.see(logits(texts, _Paris=8.0), [4])
    assert seen.notes[0].startswith(f"{PARIS}, with a probability of 0.00")
    assert seen.notes[0].endswith("at position 4; ' Paris' has 0.68.")
