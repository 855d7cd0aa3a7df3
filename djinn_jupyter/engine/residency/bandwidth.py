"""The time to bring bytes back from a tier, estimated from past moves."""

from __future__ import annotations

from typing import Final

from djinn_jupyter.wire.nouns import Tier, Transfer

BEFORE: Final[dict[Tier, float]] = {"host": 8e9, "disk": 1e9}  # bytes/s, assumed before the first move
WEIGHED: Final = 64 << 20  # bytes: the weight of that guess
MEMORY: Final = 0.9  # factor on past moves, at each move


class Bandwidth:
    """Bytes and seconds of the moves from each tier, older ones weighted less. A move's seconds include its wait for
    room, as a session that comes back would wait for room as well."""

    def __init__(self) -> None:
        self._moved = {tier: (float(WEIGHED), WEIGHED / rate) for tier, rate in BEFORE.items()}

    def learn(self, transfer: Transfer) -> None:
        if transfer.direction == "in" and transfer.bytes_moved:
            size, seconds = self._moved[transfer.tier]
            self._moved[transfer.tier] = (
                MEMORY * size + transfer.bytes_moved,
                MEMORY * seconds + transfer.seconds,
            )

    def seconds(self, tier: Tier, size: int) -> float:
        """Return the seconds for `size` bytes from `tier` to the device."""
        moved, taken = self._moved[tier]
        return size * taken / moved
