"""A lower bound on a text's tokens from its length, to refuse text that cannot fit a context without tokenizing it.

A bound holds only where no character can vanish or be joined to others without limit. That is certain for byte-level
BPE and for vocabularies with a token for every byte, behind normalizers and pre-tokenizers that remove nothing.
"""

from __future__ import annotations

import json
import math
from typing import Any, Final

from tokenizers.pre_tokenizers import ByteLevel
from transformers import PreTrainedTokenizerBase

from djinn_jupyter.engine.model.loading.byte_tokens import BYTE_TOKENS

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
    """Return the fault of a tokenizer whose replacements make a text longer without measure, None where it has none."""
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
