"""Text to token ids and back. Without a tokenizer, token 17 reads `<17>` and text is refused."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from transformers import PreTrainedTokenizerBase

from djinn_jupyter.errors import NoTokenizer, UsageError

INCOMPLETE: Final = "\ufffd"  # what stands for bytes that are not yet a character
_LONGEST_CHARACTER: Final = 8  # tokens; four bytes, and what a tokenizer may put before them
_NUMBERED = re.compile(r"<(\d+)>")


class TokenText:
    """The tokenizer of one model, or the lack of it. Thread-safe to read from: nothing here changes but a memo."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase | None) -> None:
        self.tokenizer = tokenizer
        self._texts: dict[int, str] = {}
        self._anchor: tuple[list[int], str] = ([], "")
        if tokenizer is not None:
            ids = list(tokenizer("a", add_special_tokens=False).input_ids)[-1:]
            self._anchor = ids, self.decode(ids)

    @property
    def has_chat_template(self) -> bool:
        return self.tokenizer is not None and bool(getattr(self.tokenizer, "chat_template", None))

    def encode(self, text: str, chat: bool = False) -> list[int]:
        """Token ids with the tokenizer's own special tokens; with `chat` as one user turn of the chat template."""
        tokenizer = self._needed()
        if not chat:
            return list(tokenizer(text).input_ids)
        if not self.has_chat_template:
            raise UsageError("This model's tokenizer has no chat template; run the prompt without --chat.")
        turn = [{"role": "user", "content": text}]
        rendered = tokenizer.apply_chat_template(turn, add_generation_prompt=True, tokenize=False)
        assert isinstance(rendered, str)
        return list(tokenizer(rendered, add_special_tokens=False).input_ids)

    def decode(self, tokens: Sequence[int]) -> str:
        if self.tokenizer is None:
            return "".join(f"<{token}>" for token in tokens)
        return str(self.tokenizer.decode(list(tokens), clean_up_tokenization_spaces=False))

    def text_of(self, token: int) -> str:
        """One token as it reads within a text: with its leading space. Bytes of a longer character read as U+FFFD."""
        if token not in self._texts:
            ids, text = self._anchor
            self._texts[token] = self.decode([*ids, token]).removeprefix(text)
        return self._texts[token]

    def token_id(self, text: str) -> int:
        """The one token that reads `text`. UsageError where it is none or several."""
        if self.tokenizer is None:
            numbered = _NUMBERED.fullmatch(text)
            if numbered is None:
                raise NoTokenizer(f"There is no tokenizer for this model: write a token as <17>, not {text!r}.")
            return int(numbered[1])
        ids, anchor = self._anchor
        alone = list(self.tokenizer(text, add_special_tokens=False).input_ids)
        within = list(self.tokenizer(anchor + text, add_special_tokens=False).input_ids)
        for found in (alone, within[len(ids) :] if within[: len(ids)] == ids else []):
            if len(found) == 1 and self.text_of(found[0]) == text:
                return int(found[0])
        raise UsageError(f"{text!r} is {len(alone)} tokens of this model ({self._spell(alone)}); name exactly one.")

    def stream(self) -> Stream:
        return Stream(self)

    def _spell(self, tokens: Sequence[int]) -> str:
        return " ".join(repr(self.text_of(token)) for token in tokens[:8]) or "none"

    def _needed(self) -> PreTrainedTokenizerBase:
        if self.tokenizer is None:
            raise NoTokenizer("There is no tokenizer for this model; give a list of token ids instead of text.")
        return self.tokenizer


class Stream:
    """Text of tokens as they come, in time that does not grow with the text.

    Decodes from the start of the last finished piece only, as Hugging Face's text-generation-inference does: what a
    token reads may depend on the one before it (leading spaces), never on more.
    """

    def __init__(self, texts: TokenText) -> None:
        self._texts = texts
        self._tokens: list[int] = []
        self._start = 0  # where decoding begins
        self._told = 0  # tokens whose text was given out

    def add(self, token: int) -> str:
        """The text that became certain with this token; empty while a character is unfinished."""
        self._tokens.append(token)
        before = self._texts.decode(self._tokens[self._start : self._told])
        now = self._texts.decode(self._tokens[self._start :])
        if len(now) <= len(before) or now.endswith(INCOMPLETE):
            return ""
        self._start, self._told = self._told, len(self._tokens)
        return now[len(before) :]

    def rest(self) -> str:
        """What is still held back, when nothing more comes."""
        before = self._texts.decode(self._tokens[self._start : self._told])
        return self._texts.decode(self._tokens[self._start :])[len(before) :]
