"""Text of any origin that is to be sent and shown: the characters that cannot be, and their spelling."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable
from difflib import get_close_matches
from itertools import zip_longest
from typing import Final

LONGEST_MESSAGE: Final = 4000
MOST_NAMED: Final = 8
MOST_LIKENED: Final = 200  # names; each takes 20 to 130 microseconds, by its length
LONGEST_QUOTED: Final = 600  # a name has up to 512 characters, and a person's before it
_TURNING: Final = frozenset("\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")  # what follows reads backwards


def sendable(text: str, longest: int = LONGEST_MESSAGE) -> str:
    """Return the text as UTF-8 can carry it, halves of surrogate pairs spelled out, and cut where it is longer than
    that."""
    whole = text.encode(errors="backslashreplace").decode()
    return whole if len(whole) <= longest else f"{whole[: longest - 4]} ..."


def unshown(text: str) -> str | None:
    """Return the first character that a terminal or a log would obey, and not show; None where there is none."""
    return next((c for c in text if unicodedata.category(c) in ("Cc", "Cs", "Zl", "Zp") or c in _TURNING), None)


def shown(text: str) -> str:
    """Return the text with such characters spelled out."""
    if text.isprintable() or unshown(text) is None:
        return text
    return "".join(c if unshown(c) is None else c.encode("unicode_escape").decode() for c in text)


def natural_order(text: str) -> tuple[list[tuple[str, int, str]], ...]:
    """Return a key that sorts `a/2` before `a/10`, and what lies in `a` after it and before `a-fork`, as the sidebar
    does."""
    return tuple(_by_numbers(part) for part in text.casefold().split("/"))


def _by_numbers(part: str) -> list[tuple[str, int, str]]:
    """Compare numbers by how long they are, then digit by digit: they may be longer than Python reads."""
    pieces = re.split(r"(\d+)", part)
    numbers = (number.lstrip("0") for number in pieces[1::2])
    return [(text, len(number), number) for text, number in zip_longest(pieces[::2], numbers, fillvalue="")]


def in_quotes(text: str) -> str:
    """Return a name in quotes, as sentences have it: as it is shown, with a backslash as one backslash, and without its
    middle where it is longer than any name."""
    quote = '"' if "'" in text and '"' not in text else "'"
    part = LONGEST_QUOTED // 4
    cut = text if len(text) <= LONGEST_QUOTED else f"{text[:part]} ... {text[-part:]}"
    return f"{quote}{shown(cut)}{quote}"


def few_of(names: Iterable[str], sought: str) -> str:
    """Return the names as a sentence lists them: those like the one that was sought first, and of many only some."""
    ordered = sorted(names, key=natural_order)
    like = get_close_matches(sought, ordered[:MOST_LIKENED], n=MOST_NAMED)
    told = [*like, *(name for name in ordered if name not in like)]
    more = f" and {len(told) - MOST_NAMED} more" if len(told) > MOST_NAMED else ""
    return ", ".join(told[:MOST_NAMED]) + more or "none"


def faults_line(count: int, last: str | None) -> str:
    """Return the sentence on errors inside an engine that belonged to no request and did not end it."""
    met = "1 error" if count == 1 else f"{count:,} errors"
    last = shown(last or "unknown")
    return f"{met} that belonged to no request, the last {last}; it went on, and its log has the trace"
