"""One text, streamed and returned, whatever the decoder; a token that the tokenizer lacks reads as its number."""

from __future__ import annotations

from itertools import product

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from djinn_jupyter.engine.model.loading.tokenizer import TokenText

PIECES = {
    "bpe": (("hel@@", "lo", "wor@@", "ld", "a", "!"), decoders.BPEDecoder(suffix="</w>")),
    "subwords": (("hel@@", "lo", "wor@@", "ld", "a", "!"), decoders.Sequence(
        [decoders.Fuse(), decoders.Replace("@@", "")]
    )),
    "joined": (("hel@@", "lo", "wor@@", "ld", "a", "!"), decoders.Sequence(
        [decoders.WordPiece(prefix="##", cleanup=False), decoders.Fuse(), decoders.Replace("@@ ", "")]
    )),
    "wordpiece": (("hel", "##lo", "wor", "##ld", "a", "!"), decoders.WordPiece(prefix="##", cleanup=False)),
    "metaspace": (("\u2581hel", "lo", "\u2581wor", "ld", "a", "!"), decoders.Metaspace()),
}  # fmt: skip


def texts_of(kind: str) -> TokenText:
    pieces, decoder = PIECES[kind]
    made = Tokenizer(models.WordLevel({piece: number for number, piece in enumerate(pieces)}, unk_token="a"))
    made.pre_tokenizer, made.decoder = pre_tokenizers.Whitespace(), decoder
    return TokenText(PreTrainedTokenizerFast(tokenizer_object=made))


@pytest.mark.parametrize("kind", PIECES)
def test_what_is_streamed_is_what_is_returned(kind: str) -> None:
    texts = texts_of(kind)
    for line in product(range(6), repeat=4):
        for begins in range(4):
            before, text = texts.parted(line, begins)
            stream = texts.stream(line[:begins])
            assert "".join([stream.add(token) for token in line[begins:]] + [stream.rest()]) == text
            assert before + text == texts.decode(line)


def test_a_token_that_the_tokenizer_lacks_reads_as_its_number() -> None:
    texts = texts_of("wordpiece")
    assert texts.text_of(350) == "<350>"
    assert texts.decode([0, 350, 4]) == "hel<350>a"
    stream = texts.stream([0])
    assert stream.add(350) == "<350>"
