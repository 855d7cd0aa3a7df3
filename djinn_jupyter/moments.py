"""Parse and spell moments such as `2026-12-01T12:00Z`, and durations such as `8h`. Seconds inside."""

from __future__ import annotations

import math
import re
from datetime import UTC, datetime
from typing import Final

from djinn_jupyter.errors import UsageError

_UNITS: Final = {"s": 1, "min": 60, "h": 3600, "d": 86400}
_DURATION: Final = re.compile(rf"(\d{{1,9}}(?:\.\d{{1,9}})?) ?({'|'.join(_UNITS)})")


def read_duration(text: str) -> float:
    """Return `90s`, `10min`, `8h` or `2d` in seconds. UsageError for what is none, or is zero."""
    found = _DURATION.fullmatch(text)
    seconds = float(found[1]) * _UNITS[found[2]] if found else 0.0
    if not seconds:
        raise UsageError(f"{text[:40]!r} is no duration; write for example 8h, 30min or 2d.")
    return seconds


def spell_duration(seconds: float) -> str:
    """Spell seconds in the largest unit of which there is one, as `12 s`, `45 min`, `2.5 h` or `3 d`."""
    unit, size = next((one for one in reversed(_UNITS.items()) if seconds >= one[1]), ("s", 1))
    return f"{seconds / size:.1f}".removesuffix(".0") + f" {unit}"


def read_moment(text: str) -> float:
    """Return a moment of ISO 8601 in seconds since the epoch. Without a zone it is of this machine's. UsageError for
    what is none."""
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
