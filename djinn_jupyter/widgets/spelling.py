"""Spell values with few digits, the same on every machine.

A figure is rounded once, here; bars and tints are computed from the rounded figure, so that a drawing changes only when
its text changes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from djinn_jupyter.units import rounded as rounded
from djinn_jupyter.units import significant, spell_bytes
from djinn_jupyter.wire.readings import at_positions as at_positions
from djinn_jupyter.wire.readings import spans as spans
from djinn_jupyter.wire.texts import aligned

NOT_MEASURED = "not measured"
_MARKS = {" ": "\u00b7", "\n": "\u21b5", "\t": "\u2192", "\r": "\\r"}


def figure(value: float | None, digits: int = 3) -> str:
    """Spell a number with `digits` significant digits."""
    return NOT_MEASURED if value is None else significant(value, digits)


def share(probability: float) -> float:
    """Return a probability as drawn: two significant digits, at least 0.001, never 1 for an uncertain token."""
    if probability < 0.0005:
        return 0.0
    if probability >= 0.995:
        return 0.995 if probability < 1 else 1.0
    return round(probability, 3 if probability < 0.0995 else 2)


def percent(probability: float) -> str:
    """Spell a probability as `42 %`, `3.1 %`, `<0.1 %`, `>99 %`."""
    value = share(probability)
    if value == 0:
        return "<0.1 %" if probability > 0 else "0 %"
    if value == 0.995:
        return ">99 %"
    return f"{value * 100:.0f} %" if value >= 0.0995 else f"{value * 100:.1f} %"


def logit(value: float, *, signed: bool = False) -> str:
    """Spell a logit, or with `signed` the change of one, to two decimals; rounding noise becomes zero."""
    short = round(value, 2) + 0.0  # -0.0 becomes 0.0
    return f"{short:+.2f}" if signed and short else f"{short:.2f}"


def nats(divergence: float) -> str:
    """Spell a KL divergence with three decimals; rounding noise below them becomes zero."""
    return f"{abs(divergence) if abs(divergence) < 0.0005 else divergence:.3f} nats"


def amount(count: int | None) -> str:
    """Spell bytes as `1.50 KiB`, `20.0 GiB`."""
    return NOT_MEASURED if count is None else spell_bytes(count)


def duration(seconds: float) -> str:
    """Spell seconds as `0.41 ms`, `34 ms`, `1.2 s`, `95 s`."""
    if seconds < 0.9995:
        return f"{figure(seconds * 1000, 2)} ms"
    return f"{figure(seconds, 2)} s"


def since(seconds: float) -> str:
    """Spell an elapsed time in one unit, so that it seldom changes: `< 1 min`, `5 min`, `3 h`, `2 d`."""
    for unit, size in (("d", 86_400), ("h", 3600), ("min", 60)):
        if seconds >= size:
            return f"{int(seconds // size)} {unit}"
    return "< 1 min"


def plural(count: int, noun: str, many: str | None = None) -> str:
    """Spell a count with its noun: `1 token`, `12 tokens`, `1,024 positions`."""
    return f"{count:,} {noun if count == 1 else many or noun + 's'}"


def shape(sizes: Iterable[int]) -> str:
    return "[" + ", ".join(str(n) for n in sizes) + "]"


def marked(text: str, token: int | None = None) -> str:
    """Return a token with its white space made visible; a token without text is named by its number."""
    if not text:
        return f"#{token}" if token is not None else "\u2205"
    lead = len(text) - len(text.lstrip(" "))
    body = "".join(_MARKS.get(c, c) if c != " " else c for c in text[lead:])
    return _MARKS[" "] * lead + "".join(c if c.isprintable() else "\ufffd" for c in body)


def quoted(text: str, token: int | None = None) -> str:
    """Return a token in plain text: its Python repr, or its number where it has no text."""
    return repr(text) if text or token is None else f"#{token}"


def columns(rows: Sequence[Sequence[str]], head: Sequence[str] | None = None) -> str:
    """Format rows as left-aligned columns with two spaces between; no trailing blanks."""
    return "\n".join(aligned([*([head] if head else []), *rows]))


def clipped(text: str, limit: int) -> str:
    """Return a text of at most `limit` characters, cutting off the beginning of a longer one."""
    return text if len(text) <= limit else "\u2026" + text[-(limit - 1) :]


def truncated(text: str, limit: int) -> str:
    """Return a text of at most `limit` characters, cutting off the end of a longer one."""
    return text if len(text) <= limit else f"{text[: limit - 1]}\u2026"


def ends(count: int, most: int) -> list[int]:
    """Return the first and the last of so many places, where they are more than can be drawn."""
    if count <= most:
        return list(range(count))
    return [*range(most // 2), *range(count - most // 2, count)]


def ends_note(what: str, some: Sequence[int], count: int) -> list[str]:
    """Say that these are not all of `count` things, if they are not."""
    half = len(some) // 2
    return [] if len(some) == count else [f"the first {half} and the last {half} of {count} {what}"]
