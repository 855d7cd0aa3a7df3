"""A tokenizer for the tiny models: token 17 reads ` w17`."""

from __future__ import annotations

from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from tests.families import VOCAB


def tokenizer() -> PreTrainedTokenizerFast:
    vocabulary = {"a": 1, **{f"w{n}": n for n in range(VOCAB) if n != 1}}
    inner = Tokenizer(models.WordLevel(vocabulary, unk_token="w0"))
    inner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=inner)
