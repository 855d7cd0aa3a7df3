"""The bytes that one token stands for, where it may be no whole character. Knows two spellings of bytes: one letter
each, as in byte-level BPE, and `<0xD9>`, as in sentencepiece."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from itertools import groupby
from typing import Final

from transformers import PreTrainedTokenizerBase

BYTE_TOKENS: Final = tuple(f"<0x{byte:02X}>" for byte in range(256))
_LONE = range(0xDC80, 0xDD00)  # `surrogateescape`'s code for a byte of no whole character


class ByteTokens:
    """Bytes of the tokens of one vocabulary."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self._tokenizer = tokenizer
        self._byte_level = _is_byte_level(tokenizer)

    def spelled(self, token: int) -> str:
        """Return the spelling of a token that holds part of a character: whole characters as they are, other bytes as
        <0xD9>, and `<17>`, its number, where its bytes are not known."""
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
    """Return UTF-8 as text, with bytes of no whole character as <0xD9>."""
    read = content.decode("utf-8", errors="surrogateescape")
    return "".join(BYTE_TOKENS[ord(c) - 0xDC00] if ord(c) in _LONE else c for c in read)


def strays(content: Sequence[int | None]) -> Iterator[int]:
    """Yield the places of bytes that are part of no character; None stands for what is no byte."""
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
    """Return the byte for each letter of byte-level BPE: printable bytes as they are, others from U+0100 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(0x100 + n): byte for n, byte in enumerate(others)}


def _is_byte_level(tokenizer: PreTrainedTokenizerBase) -> bool:
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        return hasattr(tokenizer, "byte_decoder")
    decoder = json.loads(backend.to_str())["decoder"] or {}
    return any(part.get("type") == "ByteLevel" for part in (decoder, *decoder.get("decoders", ())))
