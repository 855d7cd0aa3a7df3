"""Spell numbers with few significant digits, the same on every machine."""

from __future__ import annotations

import math


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
    """Spell the power of ten that is above a positive number: all that different processors agree on of a rounding."""
    return "0" if value == 0 else f"{10.0 ** (math.floor(math.log10(value)) + 1):g}"
