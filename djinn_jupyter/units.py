"""Spell numbers with few significant digits, the same on every machine."""

from __future__ import annotations

import math
import re
from datetime import UTC, datetime
from decimal import Decimal
from typing import Final

from djinn_jupyter.errors import UsageError


def rounded(value: float, digits: int = 3) -> float:
    """Round `value` to `digits` significant digits."""
    if value == 0 or not math.isfinite(value):
        return value
    return round(value, digits - 1 - math.floor(math.log10(abs(value))))


def significant(value: float, digits: int = 3) -> str:
    """Spell a number with `digits` significant digits; an exponent only below 1e-4 or from 1e9 on."""
    if not math.isfinite(value):
        return str(value)
    short = rounded(value, digits)
    size = abs(short)
    if size == 0:
        return "0"
    if size < 1e-4 or size >= 1e9:
        return f"{short:.{digits - 1}e}"
    decimals = max(0, digits - 1 - math.floor(math.log10(size)))
    return f"{short:,.{decimals}f}"


def power_above(value: float) -> str:
    """Spell the power of ten above a positive number: different processors agree on no more of a rounding."""
    return "0" if value == 0 else f"{10.0 ** (math.floor(math.log10(value)) + 1):g}"


# Parse and spell amounts of memory such as `20GiB`, in powers of 1,024, and the speed of links.

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
    """Spell bytes as an option's value, in one word and never too few: `1.5GiB`, `114.286MiB`."""
    unit, size = _unit_of(count)
    return f"{math.ceil(count / size * 1000) / 1000:.10g}{unit}"


def spell_rate(bytes_per_second: float, digits: int = 3) -> str:
    """Spell the speed of a link as vendors do, in powers of 1,000: `12.4 GB/s`."""
    return f"{significant(bytes_per_second / 1e9, digits)} GB/s"


def _unit_of(count: float) -> tuple[str, int]:
    """Return the largest unit with an amount of about one or more, and its size."""
    for letter, size in _UNITS.items():
        if count >= max(size * 1000 / 1024, 1024):
            return f"{letter.upper()}iB", size
    return "B", 1


# Parse and spell moments such as `2026-12-01T12:00Z`, and durations such as `8h`. Seconds inside.

_DURATIONS: Final = {"s": 1, "min": 60, "h": 3600, "d": 86400}
_DURATION: Final = re.compile(rf"(\d{{1,9}}(?:\.\d{{1,9}})?) ?({'|'.join(_DURATIONS)})")


def read_duration(text: str) -> float:
    """Return `90s`, `10min`, `8h` or `2d` in seconds. UsageError for an invalid or zero duration."""
    found = _DURATION.fullmatch(text)
    seconds = float(found[1]) * _DURATIONS[found[2]] if found else 0.0
    if not seconds:
        raise UsageError(f"{text[:40]!r} is no duration; write for example 8h, 30min or 2d.")
    return seconds


def spell_duration(seconds: float) -> str:
    """Spell seconds in the largest unit of at least one, as `12 s`, `45 min`, `2.5 h` or `3 d`."""
    unit, size = next((one for one in reversed(_DURATIONS.items()) if seconds >= one[1]), ("s", 1))
    return f"{seconds / size:.1f}".removesuffix(".0") + f" {unit}"


def read_moment(text: str) -> float:
    """Return a moment of ISO 8601 in seconds since the epoch; without a zone in this machine's time zone. UsageError
    for an invalid moment."""
    try:
        return datetime.fromisoformat(text).timestamp()
    except (ValueError, OverflowError, OSError):
        raise UsageError(f"{text[:40]!r} is no moment; write for example 2026-12-01T12:00Z.") from None


def spell_moment(seconds: float) -> str:
    """Spell seconds since the epoch as `2026-12-01T12:00:00Z`, never too late. UsageError beyond the year 9999."""
    try:
        found = datetime.fromtimestamp(math.floor(seconds), UTC)
    except (ValueError, OverflowError, OSError):
        raise UsageError("A moment is before the year 10000.") from None
    return found.isoformat().replace("+00:00", "Z")
