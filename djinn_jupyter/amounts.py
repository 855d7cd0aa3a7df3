"""Parse and spell amounts of memory such as `20GiB`, in powers of 1,024, and the speed of links."""

from __future__ import annotations

import math
import re
from decimal import Decimal
from typing import Final

from djinn_jupyter.digits import significant
from djinn_jupyter.errors import UsageError

MIB: Final = 2**20
GIB: Final = 2**30
_UNITS: Final = {"t": 2**40, "g": GIB, "m": MIB, "k": 2**10, "": 1}
_AMOUNT: Final = re.compile(r"^\s*(\d+(?:\.\d+)?)\s*([kmgt]?)i?b?\s*$", re.IGNORECASE)


def parse_bytes(amount: int | str | None) -> int | None:
    """Return `20GiB`, `20 GB` (the same), `512M` or a number as bytes; None stays None."""
    if amount is None or isinstance(amount, int):
        return amount
    matched = _AMOUNT.match(amount)
    if matched is None:
        raise UsageError(f"{amount!r} is no amount of memory; write for example 20GiB or 512MiB.")
    size = Decimal(matched[1]) * _UNITS[matched[2].lower()]  # whole numbers of bytes are exact
    if size >= 2**63:
        raise UsageError(f"{amount[:40]!r} is more memory than a machine can have; write for example 20GiB or 512MiB.")
    return int(size)


def spell_bytes(count: float, digits: int = 3) -> str:
    """Spell bytes as `900 B`, `1.50 KiB`, `20.0 GiB`; from 1,000 of a unit on in the next one."""
    unit, size = _unit_of(count)
    return f"{significant(count / size, digits)} {unit}" if size > 1 else f"{count:,.0f} B"


def spell_option(count: int) -> str:
    """Spell bytes as one gives them to an option, in one word and never too few: `1.5GiB`, `114.286MiB`."""
    unit, size = _unit_of(count)
    return f"{math.ceil(count / size * 1000) / 1000:.10g}{unit}"


def spell_rate(bytes_per_second: float, digits: int = 3) -> str:
    """Spell the speed of a link as vendors do, in powers of 1,000: `12.4 GB/s`."""
    return f"{significant(bytes_per_second / 1e9, digits)} GB/s"


def _unit_of(count: float) -> tuple[str, int]:
    """Return the largest unit of which there is about one, and its size."""
    for letter, size in _UNITS.items():
        if count >= max(size * 1000 / 1024, 1024):
            return f"{letter.upper()}iB", size
    return "B", 1
