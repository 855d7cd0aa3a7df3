"""The bytes that have crossed the wire of one connection."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from djinn_jupyter.wire.codec import WireFrame


@dataclass(frozen=True, slots=True, kw_only=True)
class WireBytes:
    """The totals include arrays."""

    sent: int = 0
    received: int = 0
    arrays_sent: int = 0
    arrays_received: int = 0

    def with_sent(self, frames: Sequence[WireFrame]) -> WireBytes:
        """Return these bytes with those of a message that was sent."""
        head, arrays = _sizes(frames)
        return replace(self, sent=self.sent + head + arrays, arrays_sent=self.arrays_sent + arrays)

    def with_received(self, frames: Sequence[WireFrame]) -> WireBytes:
        """Return these bytes with those of a message that has arrived."""
        head, arrays = _sizes(frames)
        return replace(self, received=self.received + head + arrays, arrays_received=self.arrays_received + arrays)


def _sizes(frames: Sequence[WireFrame]) -> tuple[int, int]:
    """Return the bytes of a message's envelope, and of its arrays."""
    head, *arrays = (memoryview(frame).nbytes for frame in frames)
    return head, sum(arrays)
