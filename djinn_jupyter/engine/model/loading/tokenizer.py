"""Convert text to token ids and back, including the bytes of tokens that are part of a character. Knows two spellings
of bytes: one letter each, as in byte-level BPE, and `<0xD9>`, as in sentencepiece."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from itertools import groupby
from typing import Any, Final

from tokenizers.pre_tokenizers import ByteLevel
from transformers import PreTrainedTokenizerBase

from djinn_jupyter.errors import NoTokenizer, PromptTooLong, UsageError
from djinn_jupyter.wire.request_base import LONGEST_STOP

BYTE_TOKENS: Final = tuple(f"<0x{byte:02X}>" for byte in range(256))
_LONE = range(0xDC80, 0xDD00)  # `surrogateescape`'s code for a byte of no whole character


class ByteTokens:
    """Bytes of the tokens of one vocabulary."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self._tokenizer = tokenizer
        self._byte_level = _is_byte_level(tokenizer)

    def spelled(self, token: int) -> str:
        """Return the spelling of a token with part of a character: whole characters unchanged, other bytes as <0xD9>,
        and its number, `<17>`, where its bytes are unknown."""
        piece = self._tokenizer.convert_ids_to_tokens(token)
        if piece in BYTE_TOKENS:
            return str(piece)
        letters = byte_letters()
        if self._byte_level and isinstance(piece, str) and all(letter in letters for letter in piece):
            return spelled(bytes(letters[letter] for letter in piece))
        return f"<{token}>"

    def by_token(self, decoded: Callable[[list[int]], str]) -> dict[int, int]:
        """Return the bytes of tokens that are spelled as bytes and are `decoded` as such."""
        vocabulary = self._tokenizer.get_vocab()
        found = {vocabulary[piece]: byte for byte, piece in enumerate(BYTE_TOKENS) if piece in vocabulary}
        literal = any(decoded([token]) == BYTE_TOKENS[byte] for token, byte in [*found.items()][:1])
        return {} if literal else found

    def token_of(self, text: str) -> int | None:
        """Return the token of the single byte that `text` spells, as <0xD9>, or None."""
        if text not in BYTE_TOKENS:
            return None
        letter = {byte: letter for letter, byte in byte_letters().items()}[BYTE_TOKENS.index(text)]
        found = self._tokenizer.get_vocab().get(letter if self._byte_level else text)
        return None if found is None else int(found)


def spelled(content: bytes) -> str:
    """Return UTF-8 as text, with bytes outside whole characters as <0xD9>."""
    read = content.decode("utf-8", errors="surrogateescape")
    return "".join(BYTE_TOKENS[ord(c) - 0xDC00] if ord(c) in _LONE else c for c in read)


def strays(content: Sequence[int | None]) -> Iterator[int]:
    """Yield the places of bytes that are part of no character; None stands for a non-byte."""
    at = 0
    for is_byte, run in groupby(content, lambda one: one is not None):
        if not is_byte:
            at += len(list(run))
            continue
        for character in bytes(one for one in run if one is not None).decode("utf-8", errors="surrogateescape"):
            if ord(character) in _LONE:
                yield at
                at += 1
            else:
                at += len(character.encode())


@cache
def byte_letters() -> dict[str, int]:
    """Return the byte for each letter of byte-level BPE: printable bytes unchanged, others from U+0100 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(0x100 + n): byte for n, byte in enumerate(others)}


def _is_byte_level(tokenizer: PreTrainedTokenizerBase) -> bool:
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        return hasattr(tokenizer, "byte_decoder")
    decoder = json.loads(backend.to_str())["decoder"] or {}
    return any(part.get("type") == "ByteLevel" for part in (decoder, *decoder.get("decoders", ())))


# A lower bound on a text's tokens from its length, to refuse text that cannot fit a context without tokenizing it. A
# bound holds only where no character can vanish or be joined to others without limit. That is certain for byte-level
# BPE and for vocabularies with a token for every byte, behind normalizers and pre-tokenizers that remove nothing.

Component = dict[str, Any]
_COMPOSES: Final = frozenset({"NFC", "NFKC"})
_LETTERS_OF_ONE: Final = 4  # no composed character stands for more than four (Unicode, UAX 15)
MOST_GROWTH: Final = 64  # characters that replacements may make of one, one after the other
_KEEPS_ALL: Final = frozenset({"ByteLevel", "Metaspace", "Digits", "Punctuation", "UnicodeScripts", "FixedLength"})


def longest_token(tokenizer: PreTrainedTokenizerBase) -> int | None:
    """Return the most characters of a text that one token can stand for; None where that is not certain."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        return None
    made: Component = json.loads(backend.to_str())
    normalizers, pre_tokenizers = _parts(made["normalizer"]), _parts(made["pre_tokenizer"])
    certain = (
        _every_byte_is_known(made["model"], pre_tokenizers)
        and all(map(_normalizer_keeps, normalizers))
        and all(map(_pre_tokenizer_keeps, pre_tokenizers))
        and not any(added["lstrip"] or added["rstrip"] for added in made["added_tokens"])
    )
    if not certain:
        return None
    composed = any(part["type"] in _COMPOSES for part in normalizers)
    vocabulary = tokenizer.get_vocab()
    return max(map(len, vocabulary)) * (_LETTERS_OF_ONE if composed else 1)


def growth_fault(tokenizer: PreTrainedTokenizerBase) -> str | None:
    """Return the fault of a tokenizer whose replacements lengthen a text without limit, None where it has none."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        return None
    made: Component = json.loads(backend.to_str())
    for name in ("normalizer", "decoder"):
        contents = (part.get("content", "") for part in _parts(made[name]) if part["type"] == "Replace")
        growth = math.prod(max(1, len(content)) for content in contents)
        if growth > MOST_GROWTH:
            return f"the replacements of its {name} make {growth:,} characters of one, and {MOST_GROWTH} are the most"
    return None


def _parts(part: Component | None) -> list[Component]:
    """Return the steps of a normalizer or pre-tokenizer."""
    if part is None:
        return []
    steps = part.get("normalizers") or part.get("pretokenizers") or part.get("decoders")
    return [part] if part["type"] != "Sequence" else [one for step in steps or [] for one in _parts(step)]


def _every_byte_is_known(model: Component, pre_tokenizers: list[Component]) -> bool:
    """True where every byte has a token. Otherwise unknown characters are dropped, or any number is one token."""
    if model["type"] not in ("BPE", "Unigram"):
        return False
    vocabulary = model["vocab"]
    pieces = set(vocabulary) if isinstance(vocabulary, dict) else {piece for piece, _ in vocabulary}
    if any(part["type"] == "ByteLevel" for part in pre_tokenizers):
        return model["type"] == "BPE" and pieces.issuperset(ByteLevel.alphabet())
    return bool(model.get("byte_fallback")) and pieces.issuperset(BYTE_TOKENS)


def _normalizer_keeps(part: Component) -> bool:
    match part:
        case {"type": "NFC" | "NFD" | "NFKC" | "NFKD" | "Lowercase" | "Prepend"}:
            return True
        case {"type": "Replace", "pattern": {"String": pattern}, "content": content}:
            return len(content) >= len(pattern)
    return False


def _pre_tokenizer_keeps(part: Component) -> bool:
    if part["type"] == "Split":
        return bool(part["behavior"] != "Removed")
    return part["type"] in _KEEPS_ALL and part.get("behavior") != "Removed"


# Convert text to token ids and back. Without a tokenizer, token 17 reads `<17>` and text is refused.

INCOMPLETE: Final = "\ufffd"  # the decoder's replacement for bytes that are not yet a character
_LONGEST_CHARACTER: Final = 8  # tokens; four bytes, and those that a tokenizer may put before them
_MARKS: Final = (".", ",", "!", "?", "'s", "n't", ")")  # before which a decoder may take a space away
_WITHIN_CHARACTER = re.compile(r"<0x[89AB][0-9A-F]>")  # a continuation byte, which begins no character
_NUMBERED = re.compile(r"<(\d+)>")


class TokenText:
    """The tokenizer of one model, or its absence. Thread-safe to read from: only a memo changes."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase | None) -> None:
        self.tokenizer = tokenizer
        self._texts: dict[int, str] = {}
        self._anchor: tuple[list[int], str] = ([], "")
        self._followers: list[list[int]] = []
        self._byte_of: dict[int, int] = {}
        self._longest: int | None = None
        self._first: int | None = None  # the token that the tokenizer puts before a text
        self._closing: int | None = None  # the one that it puts behind
        self._lacking: dict[int, bool] = {}
        self._awaiting: dict[int, bool] = {}
        if tokenizer is not None:
            self._known = frozenset(tokenizer.get_vocab().values())
            self._last = max(self._known, default=-1)
            ids, around = self._ids("a"), self._ids("a", special=True)
            self._first = around[0] if around[0] not in ids else None
            self._closing = around[-1] if around[-1] not in ids else None
            ids = ids[-1:]
            self._anchor = ids, self.decode(ids)
            self._followers = [ids, *(self._ids(mark)[-1:] for mark in _MARKS)]
            self._bytes = ByteTokens(tokenizer)
            self._byte_of = self._bytes.by_token(self._decoded)
            self._longest = longest_token(tokenizer)

    @property
    def is_fast(self) -> bool:
        """True where Rust tokenizes the text, without holding the GIL."""
        return self.tokenizer is not None and bool(self.tokenizer.is_fast)

    def require_room(self, text: str, most: int | None) -> None:
        """Raise PromptTooLong where `text`, by its length alone, must have more than `most` tokens."""
        if most is not None and self._longest is not None and len(text) > most * self._longest:
            least = -(-len(text) // self._longest)
            raise PromptTooLong(
                f"The text has {len(text):,} characters, which are {least:,} tokens or more, and the model "
                f"{most:,} positions; shorten it."
            )

    def encode(self, text: str, rendered: bool = False, most: int | None = None) -> list[int]:
        """Return token ids with the tokenizer's own special tokens; without them for a text that was `rendered` by the
        chat template, which has written them. PromptTooLong where there are more than `most`, if possible before they
        are made."""
        self._needed()
        self.require_room(text, most)
        tokens = self._ids(text, special=not rendered)
        if most is not None and len(tokens) > most:
            raise PromptTooLong(
                f"The text has {len(tokens):,} tokens and the model {most:,} positions; "
                f"shorten it by {len(tokens) - most:,}."
            )
        return tokens

    def begun_twice(self, tokens: Sequence[int]) -> str | None:
        """Return the note on tokens that begin twice with the token that the tokenizer puts before a text."""
        if self._first is None or list(tokens[:2]) != [self._first] * 2:
            return None
        return (
            f"The line begins with {self.decode([self._first])!r} twice: the tokenizer adds one to a text, also where "
            "the text has one. Leave it out of the text, or give token ids."
        )

    def closed(self, prompt: Sequence[int]) -> str | None:
        """Return the note on a prompt that ends with the token that the tokenizer puts after a text."""
        if self._closing is None or list(prompt[-1:]) != [self._closing]:
            return None
        return (
            f"The prompt ends with {self.decode([self._closing])!r}, which the tokenizer adds behind a text: the last "
            "position is that token's, and the model goes on behind it. Give token ids without it to go on from the "
            "text."
        )

    def decode(self, tokens: Sequence[int]) -> str:
        if self.tokenizer is None:
            return "".join(f"<{token}>" for token in tokens)
        stray = strays([self._byte_of.get(token) for token in tokens]) if self._byte_of else ()
        alone = [f"<{token}>" if self._lacks(token) else None for token in tokens]
        for at in stray:
            alone[at] = INCOMPLETE
        runs = [list(run) for _, run in groupby(zip(tokens, alone, strict=True), lambda one: one[1] is None)]
        return "".join(self._run_read(run, first=number == 0) for number, run in enumerate(runs))

    def _run_read(self, run: list[tuple[int, str | None]], *, first: bool) -> str:
        """Return the text of tokens that are decoded together, or of a token that is read alone; a decoder may strip a
        space from the `first`."""
        if run[0][1] is not None:
            return "".join(text or "" for _, text in run)
        ids, before = ([], "") if first else self._anchor
        return self._decoded([*ids, *(token for token, _ in run)]).removeprefix(before)

    def _decoded(self, tokens: list[int]) -> str:
        assert self.tokenizer is not None
        with _Panics("these tokens"):
            return str(self.tokenizer.decode(tokens, clean_up_tokenization_spaces=False))

    def _lacks(self, token: int) -> bool:
        """Return whether the tokenizer lacks such a token, which is shown as its number: a model may have more."""
        if token not in self._lacking:
            known = token in self._known
            self._lacking[token] = not known and (token > self._last or self._decoded([token]) == "")
        return self._lacking[token]

    def awaits(self, token: int) -> bool:
        """Return whether the text of a token depends on the next one, as `hel@@` does."""
        if token not in self._awaiting:
            text = self.decode([token])
            followed = (self.decode([token, *ids]) for ids in self._followers)
            self._awaiting[token] = INCOMPLETE not in text and not all(one.startswith(text) for one in followed)
        return self._awaiting[token]

    def parted(self, tokens: Sequence[int], begins: int) -> tuple[str, str]:
        """Return the text of `tokens`, decoded as a whole, in two parts: the text of the first `begins` tokens, and the
        text the others add, with its leading space and any character whose first bytes end the first part."""
        whole, end, before = self.decode(tokens), begins, self.decode(tokens[:begins])
        while end and self.is_open(before, tokens[end - 1]) and begins - end < _LONGEST_CHARACTER:
            end -= 1
            before = self.decode(tokens[:end])
        if whole.startswith(before):
            return before, whole[len(before) :]
        return before, self._streamed(tokens[:end], tokens[end:])

    def is_open(self, text: str, last: int) -> bool:
        """Return whether the text of tokens, the last of them `last`, may change with the next one."""
        return text.endswith(INCOMPLETE) or self.awaits(last)

    def _streamed(self, before: Sequence[int], tokens: Sequence[int]) -> str:
        """Decode `tokens` as a stream, for bytes that are not text: a sentencepiece decoder would also make the valid
        bytes before them unreadable."""
        stream = self.stream(before)
        return "".join([stream.add(token) for token in tokens] + [stream.rest()])

    def text_of(self, token: int) -> str:
        """Return one token as shown within a text, with its leading space. Part of a character is shown as `<0xD9>`."""
        if token not in self._texts:
            ids, before = self._anchor
            text = self.decode([*ids, token]).removeprefix(before)
            self._texts[token] = self._bytes.spelled(token) if INCOMPLETE in text else text
        return self._texts[token]

    def token_id(self, text: str) -> int:
        """Return the one token with this text. UsageError for none or several."""
        if self.tokenizer is None:
            numbered = _NUMBERED.fullmatch(text)
            if numbered is None:
                raise NoTokenizer(f"There is no tokenizer for this model: write a token as <17>, not {text!r}.")
            return int(numbered[1])
        ids, anchor = self._anchor
        alone, within = self._ids(text), self._ids(anchor + text)
        for found in (alone, within[len(ids) :] if within[: len(ids)] == ids else []):
            if len(found) == 1 and self.text_of(found[0]) == text:
                return int(found[0])
        byte = self._bytes.token_of(text)
        if byte is not None:
            return byte
        raise UsageError(f"{text!r} is {len(alone)} tokens of this model ({self._spell(alone)}); name exactly one.")

    def spaced(self, text: str) -> int | None:
        """Return the one token of the text with a space before it, or None where there is none or `text` does not begin
        with a letter or digit."""
        if self.tokenizer is None or not text[:1].isalnum():
            return None
        try:
            return self.token_id(f" {text}")
        except UsageError:
            return None

    def end_of(self, tokens: Sequence[int]) -> list[int]:
        """Return the last tokens, from the start of a character: with part of a character before them, a sentencepiece
        decoder makes every byte up to the next token of text unreadable."""
        begin = max(len(tokens) - _LONGEST_CHARACTER, 0)
        for start in range(begin, max(begin - 4, 0), -1):
            if _WITHIN_CHARACTER.match(self.text_of(tokens[start])) is None:
                return list(tokens[start:])
        return list(tokens[max(begin - 4, 0) :])

    def stream(self, before: Sequence[int] = ()) -> Stream:
        """Return a stream of the text that follows `before`."""
        return Stream(self, before)

    def _ids(self, text: str, *, special: bool = False) -> list[int]:
        """Return the token ids of a text. UsageError where the tokenizer's own code panics in Rust, which is not an
        Exception: a pattern of its file may try too many ways (oniguruma's limit)."""
        with _Panics("this text"):
            return list(self._needed()(text, add_special_tokens=special, verbose=False).input_ids)

    def _spell(self, tokens: Sequence[int]) -> str:
        return " ".join(repr(self.text_of(token)) for token in tokens[:8]) or "none"

    def _needed(self) -> PreTrainedTokenizerBase:
        if self.tokenizer is None:
            raise NoTokenizer("There is no tokenizer for this model; give a list of token ids instead of text.")
        return self.tokenizer


class _Panics:
    """Context that raises a tokenizer's panic as UsageError; `given` names its input."""

    __slots__ = ("_given",)

    def __init__(self, given: str) -> None:
        self._given = given

    def __enter__(self) -> None: ...

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if kind is not None and kind.__name__ == "PanicException":
            said = str(error).partition("\n")[0]
            raise UsageError(f"The model's tokenizer gave up on {self._given} ({said}); give token ids.") from None


class Stream:
    """The text of tokens as they arrive, in time that does not grow with the text.

    Decodes from the start of the last finished piece only, as Hugging Face's text-generation-inference does: the text
    of a token may depend on the one before it (leading spaces), never on more. `tail` is the end of the text given out.
    """

    def __init__(self, texts: TokenText, before: Sequence[int] = ()) -> None:
        self._texts = texts
        self._tokens = texts.end_of(before)
        self._start = 0  # index of the token that decoding starts at
        self._told = self._finished()  # tokens whose text was given out
        self.tail = ""

    def _finished(self) -> int:
        """Return the number of tokens that make whole characters; all of them where the last bytes are not text."""
        count = len(self._tokens)
        for told in range(count, max(count - _LONGEST_CHARACTER, -1), -1):
            if not told or not self._texts.is_open(self._texts.decode(self._tokens[:told]), self._tokens[told - 1]):
                return told
        return count

    def add(self, token: int) -> str:
        """Return the text that became certain with this token; empty while a character is unfinished."""
        self._tokens.append(token)
        before = self._texts.decode(self._tokens[self._start : self._told])
        now = self._texts.decode(self._tokens[self._start :])
        unfinished = self._texts.is_open(now, token) and len(self._tokens) - self._told < _LONGEST_CHARACTER
        if len(now) <= len(before) or unfinished:
            return ""
        self._start, self._told = self._told, len(self._tokens)
        added = now[len(before) :]
        self.tail = self.tail[-LONGEST_STOP:] + added
        return added

    def rest(self) -> str:
        """Return the text still held back, as shown where no more tokens come."""
        if self._told == len(self._tokens):
            return ""
        before = self._texts.decode(self._tokens[self._start : self._told])
        return self._texts.decode(self._tokens[self._start :])[len(before) :]
