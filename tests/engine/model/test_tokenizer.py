"""Text and tokens: the tokens' texts together are the text, and no half character is ever shown as whole."""

from __future__ import annotations

import re

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from djinn_jupyter.engine.model.loading.tokenizer import BYTE_TOKENS, INCOMPLETE, TokenText, growth_fault, spelled
from djinn_jupyter.errors import NoTokenizer, UsageError

CORPUS = [
    "The capital of France is Paris.",
    "Mary and John went to the store.",
    "Grüße aus Köln, 東京 and \U0001f30d",
] * 20


def byte_level() -> PreTrainedTokenizerFast:
    """A tokenizer as GPT-2's: any byte can be encoded, a leading space belongs to its word."""
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=330, initial_alphabet=alphabet, special_tokens=["<|end|>"], show_progress=False
    )
    made.train_from_iterator(CORPUS, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=made, eos_token="<|end|>")


def metaspace() -> PreTrainedTokenizerFast:
    """As Llama 2's: a mark for the space before a word, dropped from the first when decoding; bytes as a fallback."""
    letters = [("<unk>", 0.0), *[(f"<0x{b:02X}>", -20.0) for b in range(256)]]
    words = [(c, -8.0) for c in "▁abcdefghijklmnopqrstuvwxyzTFPMJ.,"] + [
        ("▁Paris", -2.0),
        ("▁is", -2.0),
        ("▁the", -2.0),
    ]
    made = Tokenizer(models.Unigram([*letters, *words], unk_id=0, byte_fallback=True))
    made.pre_tokenizer = pre_tokenizers.Metaspace()
    made.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return PreTrainedTokenizerFast(tokenizer_object=made)


TEXTS = {"byte level": TokenText(byte_level()), "metaspace": TokenText(metaspace())}
unhurried = settings(deadline=None)
either = pytest.mark.parametrize("kind", TEXTS)
writing = st.text(alphabet=st.sampled_from("The capital is Paris, Köln 東京\U0001f30dé.\n"), max_size=30)


@either
@unhurried
@given(text=writing)
def test_a_token_reads_as_the_bytes_that_it_is(kind: str, text: str) -> None:
    """Put together they read as the text, bytes of a longer character as <0xC3>: nothing is a lone U+FFFD."""
    texts = TEXTS[kind]
    tokens = texts.encode(text)
    pieces = [texts.text_of(token) for token in tokens]
    assert not any(INCOMPLETE in piece for piece in pieces)
    assert _read("".join(pieces)).lstrip(" ") == texts.decode(tokens).lstrip(" ")


def _read(pieces: str) -> str:
    """Text in which bytes are written out, as text."""
    letters = re.split(r"(<0x[0-9A-F]{2}>)", pieces)
    return b"".join(bytes([int(x[3:5], 16)]) if x in BYTE_TOKENS else x.encode() for x in letters).decode()


@either
@unhurried
@given(text=writing, part=st.floats(0, 1))
@example(text="é京\U0001f30d", part=1.0)
@example(text="京" * 9 + "é", part=0.99)
def test_a_prompt_and_what_follows_are_the_text_as_a_whole(kind: str, text: str, part: float) -> None:
    texts = TEXTS[kind]
    tokens = texts.encode(text)
    begins = int(part * len(tokens))
    prompt, new = texts.parted(tokens, begins)
    assert prompt + new == texts.decode(tokens)
    stream = texts.stream(tokens[:begins])
    streamed = "".join(stream.add(token) for token in tokens[begins:]) + stream.rest()
    assert streamed == new


@either
def test_a_single_byte_is_named_as_it_is_shown(kind: str) -> None:
    texts = TEXTS[kind]
    for token in {token for token in texts.encode("م") if texts.text_of(token) in BYTE_TOKENS}:
        assert texts.token_id(texts.text_of(token)) == token


def test_a_token_that_is_the_replacement_character_is_shown_as_it_is() -> None:
    assert spelled("x\ufffd".encode()) == "x\ufffd"
    assert spelled(b" \xd9\xff\xc3\xa9") == " <0xD9><0xFF>é"


@either
def test_a_leading_space_is_part_of_its_token(kind: str) -> None:
    texts = TEXTS[kind]
    assert texts.text_of(texts.encode("The capital is Paris")[-1]).startswith(" ") or kind == "byte level"
    assert texts.text_of(texts.token_id(" is")) == " is"


@either
@unhurried
@given(text=writing)
def test_a_stream_gives_every_character_once_and_whole(kind: str, text: str) -> None:
    texts = TEXTS[kind]
    tokens = texts.encode(text)
    stream = texts.stream()
    pieces = [stream.add(token) for token in tokens]
    assert not any(piece.endswith(INCOMPLETE) for piece in pieces)
    assert "".join(pieces) + stream.rest() == texts.decode(tokens)


@either
def test_a_token_is_named_by_its_text_if_it_is_one(kind: str) -> None:
    texts = TEXTS[kind]
    for token in texts.encode(" the"):
        assert texts.token_id(texts.text_of(token)) == token
    with pytest.raises(UsageError, match=r"is \d+ tokens of this model .*name exactly one"):
        texts.token_id("qzxj jxzq")


def test_without_a_tokenizer_tokens_are_numbers_and_text_is_refused() -> None:
    texts = TokenText(None)
    assert texts.decode([17, 3]) == "<17><3>"
    assert texts.text_of(17) == "<17>"
    assert texts.token_id("<17>") == 17
    with pytest.raises(NoTokenizer, match="list of token ids"):
        texts.encode("The")
    with pytest.raises(NoTokenizer, match="write a token as <17>"):
        texts.token_id("The")


def test_a_pattern_that_gives_up_on_a_text_is_one_sentence() -> None:
    """Rust panics there, with what is no Exception."""
    tokenizer = byte_level()
    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"(a+)+$"), "isolated")
    texts, bad = TokenText(tokenizer), "a" * 40 + "b"
    for ask in (texts.encode, texts.token_id):
        with pytest.raises(UsageError, match=r"gave up on this text .*retry-limit.*; give token ids"):
            ask(bad)
    assert texts.encode("ab")


def test_replacements_that_make_a_text_long_without_measure_are_a_fault() -> None:
    assert growth_fault(byte_level()) is None
    assert growth_fault(metaspace()) is None
    grows = byte_level()
    grows.backend_tokenizer.normalizer = normalizers.Sequence([normalizers.Replace("a", "a" * 5)] * 3)
    assert "its normalizer make 125 characters of one" in str(growth_fault(grows))
    grows = byte_level()
    grows.backend_tokenizer.decoder = decoders.Sequence([decoders.Replace("a", "a" * 65)])
    assert "its decoder make 65 characters" in str(growth_fault(grows))
