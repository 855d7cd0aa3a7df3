"""Prompts of a collection, as users give them: texts or token ids, one by one or in a file; and their tokens."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final

from djinn_jupyter.client.arrays import token_ids
from djinn_jupyter.client.connection.channel import Channel, ask_for
from djinn_jupyter.errors import UsageError
from djinn_jupyter.wire import requests as ask
from djinn_jupyter.wire.replies import Tokenized

FIELDS: Final = ("tokens", "text", "prompt")
FORMS: Final = "a list of texts or of lists of token ids, or the path of a file of them"


def given_prompts(prompts: object) -> Iterator[object]:
    """Yield the prompts of a list, of any iterable, or of the file at a pathlib.Path. Raises UsageError."""
    if isinstance(prompts, Path):
        yield from _in_file(prompts)
    elif isinstance(prompts, str | bytes) or not isinstance(prompts, Iterable):
        raise UsageError(f"Prompts are {FORMS} (pathlib.Path); this is one {type(prompts).__name__}.")
    else:
        yield from prompts


def tokenized(channel: Channel, prompts: Iterable[object]) -> Iterator[tuple[int, ...]]:
    """Yield the token ids of each prompt. Raises UsageError, by its number, for one that has none."""
    for number, prompt in enumerate(prompts):
        if isinstance(prompt, str):
            tokens = ask_for(channel, ask.Tokenize(text=prompt), Tokenized).tokens
        else:
            tokens = token_ids(prompt)
        if not tokens:
            raise UsageError(f"Prompt {number} (counted from 0) has no tokens; leave it out.")
        yield tokens


def _in_file(path: Path) -> Iterator[object]:
    """Yield the prompts of a file: one a line, or of `.json` and `.jsonl` texts, lists of token ids, or objects with a
    field `tokens`, `text` or `prompt`."""
    try:
        text = path.read_text("utf-8")
    except OSError as error:
        raise UsageError(f"{path} could not be read: {error.strerror}.") from None
    except UnicodeDecodeError:
        raise UsageError(f"{path} is not text in UTF-8.") from None
    found = _listed(path, text) if path.suffix == ".json" else _by_line(path, text)
    if not found:
        raise UsageError(f"{path} has no prompts; write one a line.")
    yield from found


def _by_line(path: Path, text: str) -> list[Any]:
    lines = [(number, line) for number, line in enumerate(text.split("\n"), 1) if line.strip()]
    if path.suffix != ".jsonl":
        return [line for _, line in lines]
    return [_prompt(f"line {number} of {path}", _read(f"line {number} of {path}", line)) for number, line in lines]


def _listed(path: Path, text: str) -> list[Any]:
    found = _read(str(path), text) if text.strip() else []
    if not isinstance(found, list):
        raise UsageError(f"{path} is not {FORMS.split(', or')[0]}.")
    return [_prompt(f"prompt {number} of {path}", one) for number, one in enumerate(found)]


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
