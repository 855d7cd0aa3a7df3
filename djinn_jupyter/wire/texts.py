"""Texts of any origin in messages and on screens: characters that cannot be sent or shown, and their spelling."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from itertools import zip_longest
from pathlib import PurePosixPath
from typing import Final

from djinn_jupyter.errors import UsageError

LONGEST_MESSAGE: Final = 4000
MOST_NAMED: Final = 8
MOST_LIKENED: Final = 200  # names; each takes 20 to 130 microseconds, by its length
LONGEST_QUOTED: Final = 600  # a name has up to 512 characters, and a person's before it
_TURNING: Final = frozenset("\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")  # later text reads backwards


def sendable(text: str, longest: int = LONGEST_MESSAGE) -> str:
    """Return the text as UTF-8 can carry it, with halves of surrogate pairs spelled out, cut to the longest length."""
    whole = text.encode(errors="backslashreplace").decode()
    return whole if len(whole) <= longest else f"{whole[: longest - 4]} ..."


def unquoted(text: str) -> str:
    """Return `text` without the pair of quotes around it, if there is one."""
    return text[1:-1] if len(text) >= 2 and text[0] == text[-1] and text[0] in "\"'" else text


def unshown(text: str) -> str | None:
    """Return the first character that a terminal or a log would obey instead of showing it; None where there is
    none."""
    return next((c for c in text if unicodedata.category(c) in ("Cc", "Cs", "Zl", "Zp") or c in _TURNING), None)


def shown(text: str) -> str:
    """Return the text with such characters spelled out."""
    if text.isprintable() or unshown(text) is None:
        return text
    return "".join(c if unshown(c) is None else c.encode("unicode_escape").decode() for c in text)


def shown_lines(text: str) -> str:
    """Return a text of several lines with such characters spelled out."""
    return "\n".join(map(shown, text.split("\n")))


def natural_order(text: str) -> tuple[list[tuple[str, int, str]], ...]:
    """Return a key that sorts `a/2` before `a/10`, and names inside `a` after it and before `a-fork`, like the
    sidebar."""
    return tuple(_by_numbers(part) for part in text.casefold().split("/"))


def _by_numbers(part: str) -> list[tuple[str, int, str]]:
    """Compare numbers by length, then digit by digit: they may be longer than Python reads."""
    pieces = re.split(r"(\d+)", part)
    numbers = (number.lstrip("0") for number in pieces[1::2])
    return [(text, len(number), number) for text, number in zip_longest(pieces[::2], numbers, fillvalue="")]


def in_quotes(text: str) -> str:
    """Return a name in quotes, for sentences: as displayed, with a backslash as one backslash, and without its middle
    where it is longer than any name."""
    quote = '"' if "'" in text and '"' not in text else "'"
    part = LONGEST_QUOTED // 4
    cut = text if len(text) <= LONGEST_QUOTED else f"{text[:part]} ... {text[-part:]}"
    return f"{quote}{shown(cut)}{quote}"


def few_of(names: Iterable[str], sought: str) -> str:
    """Return the names as a sentence lists them: those like the wanted one first, and only some of many."""
    ordered = sorted(names, key=natural_order)
    like = get_close_matches(sought, ordered[:MOST_LIKENED], n=MOST_NAMED)
    told = [*like, *(name for name in ordered if name not in like)]
    more = f" and {len(told) - MOST_NAMED} more" if len(told) > MOST_NAMED else ""
    return ", ".join(told[:MOST_NAMED]) + more or "none"


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return rows as lines of left-aligned columns with two spaces between; no trailing blanks."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def faults_line(count: int, last: str | None) -> str:
    """Return the sentence on internal errors that belonged to no request and did not end the engine."""
    met = "1 error" if count == 1 else f"{count:,} errors"
    last = shown(last or "unknown")
    return f"{met} that belonged to no request, the last {last}; it went on, and its log has the trace"


# The displayed name of a session: a notebook's path by its stem, with its folder where several have that stem.

NOTEBOOK = ".ipynb"


def label(name: str) -> str:
    """Return a session's displayed name: for a notebook's path its stem, otherwise the name. Characters that a terminal
    would obey are spelled out."""
    return shown(PurePosixPath(name).stem if name.endswith(NOTEBOOK) else name)


def notebook_shown(path: str) -> str:
    """Return a notebook's displayed path: its name, with the extension, after its folder."""
    return shown(str(PurePosixPath(*PurePosixPath(path).parts[-2:])))


def distinct_labels(names: Iterable[str]) -> dict[str, str]:
    """Return names as displayed side by side: by their labels; equal labels get as many of their folders as needed
    (`ada/01_quickstart`)."""
    every = tuple(dict.fromkeys(names))
    labels = {name: label(name) for name in every}
    folders = 0
    while len(alike := _alike(labels)) and folders <= max(map(_depth, alike)):
        folders += 1
        labels |= {name: spelled_with(name, folders) for name in alike}
    return labels


def _alike(labels: dict[str, str]) -> list[str]:
    counts = Counter(labels.values())
    return [name for name, text in labels.items() if counts[text] > 1]


def _depth(name: str) -> int:
    return len(PurePosixPath(name).parts)


def spelled_with(name: str, folders: int) -> str:
    """Return the label after so many of the path's last folders. A name that is not a notebook's stays unchanged."""
    if not name.endswith(NOTEBOOK):
        return label(name)
    parents = PurePosixPath(name).parent.parts[-folders:]
    return shown(str(PurePosixPath(*parents, label(name))))


def require_showable(name: str, what: str) -> None:
    """Raise UsageError where a terminal or a log would obey a part of the name instead of showing it."""
    strange = unshown(name)
    if strange is not None:
        raise UsageError(f"{what} cannot hold {strange!r}, which is obeyed and not shown; choose another.")
