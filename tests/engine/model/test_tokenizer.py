"""Tokenizers: decoding, and chat templates."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator, Sequence
from itertools import product
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from djinn_jupyter.engine.model.loading import chat_template
from djinn_jupyter.engine.model.loading.chat_template import MOST_CHARACTERS, ChatTemplate, Prompt, Template, renderer
from djinn_jupyter.engine.model.loading.limited_process import Limits
from djinn_jupyter.engine.model.loading.tokenizer import BYTE_TOKENS, INCOMPLETE, TokenText, growth_fault, spelled
from djinn_jupyter.errors import EngineError, NoTokenizer, UsageError
from tests.waiting import SECONDS

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
    for line in product(range(6), repeat=3):
        for begins in range(3):
            before, text = texts.parted(line, begins)
            stream = texts.stream(line[:begins])
            assert "".join([stream.add(token) for token in line[begins:]] + [stream.rest()]) == text
            assert before + text == texts.decode(line)


@pytest.mark.parametrize("kind", DRAWN)
@settings(max_examples=40)
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


PLAIN = "{% for m in messages %}<{{ m.role }}>{{ m.content | trim }}{% endfor %}{{ eos_token }}<reply>"
LOOPS = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"
MAX = "{% set s = namespace(s='xx') %}{% for i in range(60) %}{% set s.s = s.s + s.s %}{% endfor %}{{ s.s }}"


@pytest.fixture
def made() -> Iterator[list[ChatTemplate]]:
    templates: list[ChatTemplate] = []
    yield templates
    for one in templates:
        one.close()


def of(template: object, made: list[ChatTemplate]) -> ChatTemplate:
    tokenizer = byte_level()
    tokenizer.chat_template = template  # type: ignore[assignment]
    made.append(ChatTemplate(tokenizer))
    return made[-1]


def said(template: str, text: str = "The") -> str:
    """Return the sentence with which a template fails, asked in this process."""
    with pytest.raises(UsageError) as failed:
        renderer(Template(template=template, special_tokens={}))(Prompt(text=text))
    return str(failed.value)


def test_a_chat_is_rendered_as_transformers_renders_it(made: list[ChatTemplate]) -> None:
    named = {"default": PLAIN, "tool_use": "tools"}
    for template in (PLAIN, named):
        one = of(template, made)
        for text in ("The", " a \n", "Grüße \U0001f30d", "x" * 300_000, ""):
            turn = [{"role": "user", "content": text}]
            tokenizer = byte_level()
            tokenizer.chat_template = template  # type: ignore[assignment]
            expected = tokenizer.apply_chat_template(turn, add_generation_prompt=True, tokenize=False)
            assert one.render(text) == expected
            assert "<|end|><reply>" in expected


@pytest.mark.parametrize(
    ("template", "words"),
    [
        ("{{ raise_exception('Roles\nmust alternate.') }}", "refuses this prompt: Roles must alternate."),
        ("{{ raise_exception('\x1b[31m') }}", "refuses this prompt: [31m."),
        ("{{ raise_exception() }}", "TypeError"),
        ("{{ user.name }}", "UndefinedError: 'user' is undefined"),
        ("{{ 'x' | nosuch }}", "in line 1 (TemplateAssertionError: No filter named 'nosuch')"),
        ("a\n{% for x in %}", "in line 2 (TemplateSyntaxError: Expected an expression"),
        ("{{ 1 / 0 }}", "ZeroDivisionError"),
        ("{% include 'etc' %}", "no loader"),
        ("{{ messages.__class__.__mro__ }}", "unsafe"),
        ("{% for a in range(10**9) %}{% endfor %}", "Range too big"),
        ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "RecursionError"),
        ("{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}", "RecursionError"),
        (f"{{{{ 'x' * {MOST_CHARACTERS + 1} }}}}", "makes 16,000,001 characters"),
        ("{{ '\\ud800' }}", "UnicodeEncodeError"),
    ],
)
def test_a_template_that_fails_is_one_sentence_with_its_words(template: str, words: str) -> None:
    sentence = said(template)
    assert sentence.startswith("The model's chat template ")
    assert words in sentence
    assert sentence.isprintable()
    assert len(sentence) < 600


def test_where_there_is_no_template_the_sentence_says_so(made: list[ChatTemplate]) -> None:
    with pytest.raises(NoTokenizer, match="list of token ids"):
        ChatTemplate(None).render("The")
    for nothing in (None, "", {}):
        with pytest.raises(UsageError, match="no chat template"):
            of(nothing, made).render("The")
    with pytest.raises(UsageError, match="multiple chat templates with no default"):
        of({"tool_use": PLAIN}, made).render("The")
    with pytest.raises(UsageError, match="fails"):
        of(7, made).render("The")
    with pytest.raises(UsageError, match="fails"):
        of("\ud800", made).render("The")


def test_a_template_takes_no_more_memory_than_it_may(made: list[ChatTemplate], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chat_template, "LIMITS", Limits(seconds=SECONDS, memory=2**27))
    one = of("{% if messages[0].content == 'all' %}" + MAX + "{% endif %}" + PLAIN, made)
    with pytest.raises(UsageError, match=r"had not rendered this prompt within 128 MiB of main memory; run it without"):
        one.render("all")
    assert one.render("The").endswith("<reply>")


def test_a_template_takes_no_more_time_than_it_may(made: list[ChatTemplate], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chat_template, "LIMITS", Limits(seconds=0.2, memory=2**29))
    one = of("{% if messages[0].content == 'all' %}" + LOOPS + "{% endif %}" + PLAIN, made)
    with pytest.raises(UsageError, match=r"had not rendered this prompt within 0\.2 s"):
        one.render("all")
    assert one.render("The").endswith("<reply>")


def test_a_template_is_broken_off_by_the_end(made: list[ChatTemplate]) -> None:
    one, ends = of("{% if messages[0].content == 'all' %}" + LOOPS + "{% endif %}" + PLAIN, made), []
    one.render("The")

    def render() -> None:
        with pytest.raises(EngineError, match=r"ended|stopped"):  # where the end comes first
            one.render("all")
        ends.append(True)

    thread = threading.Thread(target=render)
    thread.start()
    one.close()
    thread.join(SECONDS)
    assert ends == [True]
    with pytest.raises(EngineError, match="stopped"):
        one.render("The")
