"""Convert text to token ids and back. Without a tokenizer, token 17 reads `<17>` and text is refused."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import groupby
from typing import Final

from transformers import PreTrainedTokenizerBase

from djinn_jupyter.engine.model.loading.byte_tokens import ByteTokens, strays
from djinn_jupyter.engine.model.loading.token_bound import longest_token
from djinn_jupyter.errors import NoTokenizer, PromptTooLong, UsageError
from djinn_jupyter.wire.limits import LONGEST_STOP

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
        """True where Rust tokenizes the text, without holding the interpreter's lock."""
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
        """Return what is said of a line that begins twice with the token that the tokenizer puts before a text."""
        if self._first is None or list(tokens[:2]) != [self._first] * 2:
            return None
        return (
            f"The line begins with {self.decode([self._first])!r} twice: the tokenizer adds one to a text, also where "
            "the text has one. Leave it out of the text, or give token ids."
        )

    def closed(self, prompt: Sequence[int]) -> str | None:
        """Return what is said of a prompt that ends with the token that the tokenizer puts behind a text."""
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
        """Return the text of tokens that are decoded together, or that are each read alone; a decoder may strip a space
        from what comes `first`."""
        if run[0][1] is not None:
            return "".join(text or "" for _, text in run)
        ids, before = ([], "") if first else self._anchor
        return self._decoded([*ids, *(token for token, _ in run)]).removeprefix(before)

    def _decoded(self, tokens: list[int]) -> str:
        assert self.tokenizer is not None
        with _Panics("these tokens"):
            return str(self.tokenizer.decode(tokens, clean_up_tokenization_spaces=False))

    def _lacks(self, token: int) -> bool:
        """Return whether the tokenizer has no such token, which reads as its number: a model may have more."""
        if token not in self._lacking:
            known = token in self._known
            self._lacking[token] = not known and (token > self._last or self._decoded([token]) == "")
        return self._lacking[token]

    def awaits(self, token: int) -> bool:
        """Return whether the text of a token depends on the one after it, as `hel@@` does."""
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
        """Return whether the text of tokens, of which `last` is the last, may read otherwise with the next one."""
        return text.endswith(INCOMPLETE) or self.awaits(last)

    def _streamed(self, before: Sequence[int], tokens: Sequence[int]) -> str:
        """Decode `tokens` as a stream, for bytes that are no text: a sentencepiece decoder would also make the valid
        bytes before them unreadable."""
        stream = self.stream(before)
        return "".join([stream.add(token) for token in tokens] + [stream.rest()])

    def text_of(self, token: int) -> str:
        """Return one token as it reads within a text, with its leading space. Part of a character reads `<0xD9>`."""
        if token not in self._texts:
            ids, before = self._anchor
            text = self.decode([*ids, token]).removeprefix(before)
            self._texts[token] = self._bytes.spelled(token) if INCOMPLETE in text else text
        return self._texts[token]

    def token_id(self, text: str) -> int:
        """Return the one token that reads `text`. UsageError where there is none or several."""
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
        """Return the token ids of a text. UsageError where the tokenizer's own code gives up, which is a panic of Rust
        and no Exception: a pattern of its file may try too many ways (oniguruma's limit)."""
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
        """Return the number of tokens that read as whole characters; all of them where the last bytes are no text."""
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
        """Return the text still held back, as it reads where no more tokens come."""
        if self._told == len(self._tokens):
            return ""
        before = self._texts.decode(self._tokens[self._start : self._told])
        return self._texts.decode(self._tokens[self._start :])[len(before) :]
