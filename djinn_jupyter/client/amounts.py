"""Amounts of memory as people write them: `20GiB` and back. Powers of 1,024 throughout."""

from __future__ import annotations

import re
from typing import Final

from djinn_jupyter.errors import UsageError

_UNITS: Final = {"t": 2**40, "g": 2**30, "m": 2**20, "k": 2**10, "": 1}
_AMOUNT: Final = re.compile(r"^\s*(\d+(?:\.\d+)?)\s*([kmgt]?)i?b?\s*$", re.IGNORECASE)


def parse_bytes(amount: int | str | None) -> int | None:
    """`20GiB`, `20 GB` (the same), `512M` or a number as bytes."""
    if amount is None or isinstance(amount, int):
        return amount
    matched = _AMOUNT.match(amount)
    if matched is None:
        raise UsageError(f"{amount!r} is no amount of memory; write for example 20GiB or 512MiB.")
    return int(float(matched[1]) * _UNITS[matched[2].lower()])


def spell_bytes(count: int) -> str:
    """`500 GiB` of what was written so, exactly enough to be told from another amount."""
    letter, size = next(((letter, size) for letter, size in _UNITS.items() if count >= size), ("", 1))
    return f"{count / size:.6g} {letter.upper()}{'iB' if letter else 'B'}"
