"""Parse and spell amounts of memory such as `20GiB`. Units are powers of 1,024 throughout."""

from __future__ import annotations

import re
from typing import Final

from djinn_jupyter.errors import UsageError

_UNITS: Final = {"t": 2**40, "g": 2**30, "m": 2**20, "k": 2**10, "": 1}
_AMOUNT: Final = re.compile(r"^\s*(\d+(?:\.\d+)?)\s*([kmgt]?)i?b?\s*$", re.IGNORECASE)


def parse_bytes(amount: int | str | None) -> int | None:
    """Return `20GiB`, `20 GB` (the same), `512M` or a number as bytes; None stays None."""
    if amount is None or isinstance(amount, int):
        return amount
    matched = _AMOUNT.match(amount)
    if matched is None:
        raise UsageError(f"{amount!r} is no amount of memory; write for example 20GiB or 512MiB.")
    size = float(matched[1]) * _UNITS[matched[2].lower()]
    if size >= 2**63:
        raise UsageError(f"{amount[:40]!r} is more memory than a machine can have; write for example 20GiB or 512MiB.")
    return int(size)


def spell_bytes(count: int) -> str:
    """Spell a count of bytes in its largest unit, as `500 GiB`, with six significant digits."""
    letter, size = next(((letter, size) for letter, size in _UNITS.items() if count >= size), ("", 1))
    return f"{count / size:.6g} {letter.upper()}{'iB' if letter else 'B'}"


def amount(size: int) -> str:
    """Spell a size for an engine's messages: GiB with two decimals from 1 GiB on, else MiB."""
    return f"{size / 2**30:.2f} GiB" if size >= 2**30 else mebibytes(size)


def mebibytes(size: int) -> str:
    return f"{size / 2**20:.1f} MiB"
