"""Prompts of a collection, as users give them: texts or token ids, one by one or in a file; and their tokens."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sized
from contextlib import contextmanager
from io import StringIO
from pathlib import Path
from typing import Any, Final

from djinn_jupyter.client.arrays import token_ids
from djinn_jupyter.client.connection.channel import Channel, ask_for
from djinn_jupyter.errors import MessageTooLarge, NoTokenizer, UsageError
from djinn_jupyter.plain_files import contents_of
from djinn_jupyter.wire import requests as ask
from djinn_jupyter.wire.limits import MOST_TOKENS

FIELDS: Final = ("tokens", "text", "prompt")
LISTS: Final = {"prompt": "a list of texts or of lists of token ids", "pair": "a list of pairs (clean, corrupted)"}


def given_prompts(prompts: object) -> Iterator[object]:
    """Yield the prompts of a list, of any iterable, or of the file at a pathlib.Path. Raises UsageError."""
    if isinstance(prompts, Path):
        for where, value in records(prompts, "prompt"):
            yield value if prompts.suffix not in (".json", ".jsonl") else _prompt(where, value)
    else:
        yield from _one_by_one(prompts)


def of_how_many(prompts: object) -> str:
    """Return " of 12" for a list of prompts; nothing where they are counted only by reading them."""
    try:
        return f" of {len(prompts):,}" if isinstance(prompts, Sized) else ""
    except TypeError:  # an array without an axis, whose refusal comes where it is read
        return ""


def _one_by_one(prompts: Any) -> Iterator[object]:
    try:
        if isinstance(prompts, str | bytes | Mapping):
            raise TypeError
        return iter(prompts)
    except TypeError:
        raise UsageError(
            f"Prompts are {LISTS['prompt']}, or the path of a file of them (pathlib.Path); this is one "
            f"{type(prompts).__name__}."
        ) from None


def tokenized(channel: Channel, prompts: Iterable[object]) -> Iterator[tuple[int, ...]]:
    """Yield the token ids of each prompt. Raises UsageError, by its number, for one that has none."""
    for number, prompt in enumerate(prompts):
        with of_prompt(number):
            tokens = _tokens(channel, prompt)
        if not tokens:
            raise UsageError(f"Prompt {number} (counted from 0) has no tokens; leave it out.")
        if len(tokens) > MOST_TOKENS:
            raise UsageError(
                f"Prompt {number} (counted from 0) has {len(tokens):,} tokens, and the most is {MOST_TOKENS:,}."
            )
        yield tokens


@contextmanager
def of_prompt(number: int) -> Iterator[None]:
    """Have a refusal within name the prompt, one of many, by its number."""
    try:
        yield
    except NoTokenizer:
        raise  # as it would every prompt
    except (UsageError, MessageTooLarge) as error:
        raise type(error)(f"Prompt {number} (counted from 0): {error}") from None


def _tokens(channel: Channel, prompt: object) -> tuple[int, ...]:
    if isinstance(prompt, str):
        return ask_for(channel, ask.Tokenize(text=prompt)).tokens
    return token_ids(prompt)


def records(path: Path, of: str) -> list[tuple[str, Any]]:
    """Return what a file has (`of` is "prompt" or "pair"), each with its place in words: its lines, those of `.jsonl`
    or the list of `.json` read as JSON."""
    try:
        read = contents_of(path).decode("utf-8-sig")  # Windows' editors begin a file with a mark
    except OSError as error:
        raise UsageError(f"{path} could not be read: {error.strerror or error}.") from None
    except UnicodeDecodeError:
        raise UsageError(f"{path} is not text in UTF-8.") from None
    text = StringIO(read, newline=None).read()  # its lines end as text's do here
    found = _listed(path, text, of) if path.suffix == ".json" else _by_line(path, text)
    if not found:
        raise UsageError(f"{path} has no {of}s; write one a line.")
    return found


def _by_line(path: Path, text: str) -> list[tuple[str, Any]]:
    lines = [(f"line {number} of {path}", line) for number, line in enumerate(text.split("\n"), 1) if line.strip()]
    return lines if path.suffix != ".jsonl" else [(where, _read(where, line)) for where, line in lines]


def _listed(path: Path, text: str, of: str) -> list[tuple[str, Any]]:
    found = _read(str(path), text) if text.strip() else []
    if not isinstance(found, list):
        raise UsageError(f"{path} is not {LISTS[of]}.")
    return [(f"{of} {number} of {path}", one) for number, one in enumerate(found)]


def _read(where: str, text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{where} is no JSON: {error}.") from None


def _prompt(where: str, value: Any) -> Any:
    named = next((value[name] for name in FIELDS if name in value), None) if isinstance(value, dict) else value
    if not isinstance(named, str | list):
        raise UsageError(
            f"{where} is neither a text, nor a list of token ids, nor an object with one of them as {FIELDS}."
        )
    return named
