"""Parse text typed over a value in a variables view as an edit: `0`, `[0.1, 0.2]`, `* 0.9`, `+ 1`, or `scale 0.9`."""

from __future__ import annotations

import json
import shlex
from typing import Any

from djinn_jupyter.api import edits
from djinn_jupyter.api.edits import parse_edit
from djinn_jupyter.api.patches import Patch
from djinn_jupyter.errors import UsageError
from djinn_jupyter.wire.edits import Edit

FORMS = "a number, a list of numbers, `* 0.9`, `+ 1`, or an edit such as `scale 0.9` or `zero`"


def read_change(text: str) -> Edit | Patch:
    """Return the edit that `text` spells for a value."""
    text = text.strip()
    if text.startswith(("*", "+")):
        amount = read_number(text[1:])
        return edits.scale(amount) if text.startswith("*") else edits.add(amount)
    if text.partition(" ")[0] in edits.KINDS:
        return parse_edit(words(text), value=read_value, find=str)
    try:
        return edits.set_to(read_value(text))
    except UsageError:
        raise UsageError(f"{text!r} is no value to put there; write {FORMS}.") from None


def words(text: str) -> list[str]:
    try:
        return shlex.split(text, posix=False)
    except ValueError:
        raise UsageError(f"A quote in this line is not closed: {text}") from None


def read_number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise UsageError(f"{text.strip()!r} is not a number; write {FORMS}.") from None


def read_value(text: str) -> Any:
    """Parse a number or a list of numbers."""
    try:
        return float(text)
    except ValueError:
        pass
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    if not isinstance(found, list):
        raise UsageError(f"{text!r} is neither a number nor a list of numbers.")
    return found
