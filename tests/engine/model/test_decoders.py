"""One text, streamed and returned, whatever the decoder; a token that the tokenizer lacks reads as its number."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from djinn_jupyter.engine.model.loading.tokenizer import INCOMPLETE, TokenText

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


BYTES = [f"<0x{byte:02X}>" for byte in (0x41, 0xE2, 0x82, 0xAC, 0xF0, 0x9F)]
WORDS = ["a", "lo", "'s", "n't", ".", "!"]
SPACED = ["\u2581hel", "\u2581a", "\u2581", "\u2581\u2581", *WORDS]
REPLACE, CLEANED = (
    decoders.Replace("\u2581", " "),
    [decoders.Replace(f" {one}", one) for one in (".", "!", "'s", "n't")],
)
DRAWN = {  # the pieces of its vocabulary, of which some are drawn, and a decoder
    "cleaned wordpiece": (["##lo", "##.", "##'", *WORDS], decoders.WordPiece(prefix="##", cleanup=True)),
    "subwords": (["hel@@", "@@", "a@@", *WORDS], decoders.Sequence([decoders.Fuse(), decoders.Replace("@@", "")])),
    "bpe": (["hel</w>", ".</w>", "a</w>", *WORDS], decoders.BPEDecoder(suffix="</w>")),
    **{scheme: (SPACED, decoders.Metaspace(prepend_scheme=scheme)) for scheme in ("always", "first", "never")},
    "stripped bytes": (
        [*BYTES, *SPACED],
        decoders.Sequence([REPLACE, decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]),
    ),
    "bytes": ([*BYTES, *SPACED], decoders.Sequence([REPLACE, decoders.ByteFallback(), decoders.Fuse()])),
    "byte level": (["\u0120hel", "\u0120", "\u00e2", "\u0124", "\u00ac", *WORDS], decoders.ByteLevel()),
    "literal bytes": ([*BYTES, *SPACED], decoders.Metaspace()),
    "cleaned": (["hel ", " ", " .", " 's", *WORDS], decoders.Sequence([decoders.Fuse(), *CLEANED])),
}  # fmt: skip


def texts_of(kind: str) -> TokenText:
    return made_of(*PIECES[kind])


def made_of(pieces: Sequence[str], decoder: Any) -> TokenText:
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


@pytest.mark.parametrize("kind", DRAWN)
@given(data=st.data())
def test_whatever_the_decoder_cleans_up_one_text_is_streamed_returned_and_searched(
    kind: str, data: st.DataObject
) -> None:
    pieces, decoder = DRAWN[kind]
    texts = made_of(pieces, decoder)
    last = len(pieces) + data.draw(st.sampled_from([-1, -1, 1]), label="ids that it lacks")
    line = data.draw(st.lists(st.integers(0, last), min_size=1, max_size=7), label="line")
    begins = data.draw(st.integers(0, len(line) - 1), label="begins")
    before, text = texts.parted(line, begins)
    assert before + text == texts.decode(line)
    stream = texts.stream(line[:begins])
    streamed = [stream.add(token) for token in line[begins:]]
    assert stream.tail + stream.rest() == text, "where stop strings are looked for"
    assert "".join([*streamed, stream.rest()]) == text
    known = texts.tokenizer
    assert known is not None
    if all(token < len(known) for token in line) and INCOMPLETE not in texts.decode(line):
        assert texts.decode(line) == known.decode(line, clean_up_tokenization_spaces=False)


@pytest.mark.parametrize(
    ("kind", "line", "text"),
    [
        ("bytes", ["<0x41>", "<0xF0>"], f"A{INCOMPLETE}"),  # a decoder of bytes makes both unreadable
        ("stripped bytes", ["a", "<0xF0>", "\u2581hel"], f"a{INCOMPLETE} hel"),
        ("cleaned", ["hel ", "."], "hel."),
        ("literal bytes", ["<0x41>", "<0xF0>"], "<0x41><0xF0>"),
    ],
)
def test_what_a_decoder_would_spoil_or_take_back(kind: str, line: list[str], text: str) -> None:
    pieces, decoder = DRAWN[kind]
    texts = made_of(pieces, decoder)
    tokens = [pieces.index(piece) for piece in line]
    assert texts.parted(tokens, 0) == ("", text)
    stream = texts.stream()
    assert "".join([*map(stream.add, tokens), stream.rest()]) == text


def test_a_token_that_the_tokenizer_lacks_reads_as_its_number() -> None:
    texts = texts_of("wordpiece")
    assert texts.text_of(350) == "<350>"
    assert texts.decode([0, 350, 4]) == "hel<350> a"
    stream = texts.stream([0])
    assert stream.add(350) == "<350>"
