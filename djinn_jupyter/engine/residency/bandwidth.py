"""How long it takes to bring bytes back from a tier, by the moves there were."""

from __future__ import annotations

from typing import Final

from djinn_jupyter.wire.nouns import Tier, Transfer

BEFORE: Final[dict[Tier, float]] = {"host": 8e9, "disk": 1e9}  # bytes/s, taken for true until something has moved
WEIGHED: Final = 64 << 20  # bytes: the weight of that guess
MEMORY: Final = 0.9  # of what was seen, at each move


class Rates:
    """Bytes and seconds of the last moves from each tier, the older the less. A move's seconds hold also what it waited
    for room, which whoever comes back would wait for as well."""

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
        """For `size` bytes from `tier` to the device."""
        moved, taken = self._moved[tier]
        return size * taken / moved
