"""The speed of a line, measured by what has really arrived on it: its round trip, and the bytes that it carries in a
second. From them follow the size of a piece, how many are asked for at once, and whether packing makes one arrive
sooner."""

from __future__ import annotations

from collections import deque
from typing import Final

from djinn_jupyter.wire.pieces import MOST_BYTES

FIRST_BYTES: Final = 64 * 2**10
LEAST_BYTES: Final = 16 * 2**10
PIECE_SECONDS: Final = 0.1  # that a piece is on the line; an interrupt waits for no more than those asked for
LEAST_AT_ONCE: Final = 3
TRIED_AGAIN: Final = 32  # pieces after which packing is tried once more
_ARRIVALS: Final = 8


class LineRate:
    """`round_trip` is the shortest one seen, in seconds, and `bytes_per_second` the rate of the latest pieces; None
    before the first."""

    def __init__(self) -> None:
        self.round_trip: float | None = None
        self.bytes_per_second: float | None = None
        self._arrivals: deque[tuple[float, int]] = deque(maxlen=_ARRIVALS)

    def note_round_trip(self, seconds: float) -> None:
        self.round_trip = seconds if self.round_trip is None else min(seconds, self.round_trip)

    def begin(self, now: float) -> None:
        """Note that bytes are asked for of a line on which none were under way."""
        self._arrivals.clear()
        self._arrivals.append((now, 0))

    def note(self, now: float, count: int) -> None:
        """Note that so many bytes of a piece have arrived."""
        (began, _), *later = self._arrivals
        self._arrivals.append((now, count))
        self.bytes_per_second = (sum(size for _, size in later) + count) / max(now - began, 1e-6)

    @property
    def piece_bytes(self) -> int:
        """The size of the next piece: what the line carries in PIECE_SECONDS."""
        rate = self.bytes_per_second
        return FIRST_BYTES if rate is None else int(min(MOST_BYTES, max(LEAST_BYTES, rate * PIECE_SECONDS)))

    @property
    def at_once(self) -> int:
        """The number of pieces that are asked for at once, so that the line is not empty during a round trip."""
        return max(LEAST_AT_ONCE, 1 + round((self.round_trip or 0.0) / PIECE_SECONDS))


class PackedRate:
    """The gain of packing, by the latest packed piece: the share of the bytes that it leaves, and how long the slower
    side takes for a byte. It is tried again now and then, for a reply's arrays may differ."""

    def __init__(self) -> None:
        self._share, self._seconds = 0.0, 0.0  # the first piece is packed, to see
        self._plain = 0  # pieces since

    def note(self, size: int, packed: int, seconds: float) -> None:
        """Note a piece of `size` bytes, packed to fewer in so many seconds, of the slower side."""
        self._share, self._seconds, self._plain = packed / size, seconds / size, 0

    def packs_next(self, bytes_per_second: float | None) -> bool:
        """Return whether the next piece arrives sooner packed. Both sides work while the line carries others."""
        if bytes_per_second is None or self._plain >= TRIED_AGAIN:
            self._plain = 0
            return True
        sooner = max(self._share / bytes_per_second, self._seconds) < 1 / bytes_per_second
        self._plain += not sooner
        return sooner
