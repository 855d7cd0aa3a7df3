"""Every swap of a run, from the engine's events."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from djinn_evaluation.course import Course, Unmeasured
from djinn_evaluation.link import TimedCopy, of_transfer
from djinn_jupyter.api.engine import RemoteEngine
from djinn_jupyter.units import GIB
from djinn_jupyter.wire.nouns import Transfer
from djinn_jupyter.wire.replies import Event, SessionSwapped

NOT_COPIED = Unmeasured(reason="nothing had to be copied")


@dataclass(slots=True)
class Swaps:
    """`events` are the fields of `swap_events`; `first_out` the moment (seconds) of the first eviction."""

    events: list[dict[str, Any]]
    first_out: float | None = None
    copies: list[TimedCopy] = field(default_factory=list)

    def latencies(self) -> list[float]:
        return [event["ms"] for event in self.events]


@contextmanager
def heard(engine: RemoteEngine, course: Course, begun: float) -> Iterator[Swaps]:
    """Collect the engine's swaps from the beginning of the block to its end, without write-through. `begun` is
    monotonic."""
    found, lock = Swaps([]), threading.Lock()

    def hear(event: Event) -> None:
        if not isinstance(event, SessionSwapped) or event.transfer.cause == "write_through":
            return
        moved = event.transfer
        with lock:
            at = time.monotonic() - begun
            if moved.direction == "out" and moved.cause != "asked" and found.first_out is None:
                found.first_out = at
            found.copies += of_transfer(event.session, moved)
            found.events.append(
                {
                    "session": event.session,
                    "direction": moved.direction,
                    "tier": moved.tier,
                    "cause": moved.cause,
                    "bytes": moved.bytes_moved,
                    "ms": 1000 * moved.seconds,
                    "copy_ms": NOT_COPIED if moved.copy_seconds is None else 1000 * moved.copy_seconds,
                    "gb_per_s": _rate(moved),
                    "timestamp": at,
                }
            )
        course.tell(
            f"[{event.session}] SWAP DETECTED: {1000 * moved.seconds:.2f} ms ({moved.direction}, {moved.cause})"
        )

    stop = engine.channel.listen("", hear)
    try:
        yield found
    finally:
        stop()


def _rate(moved: Transfer) -> float | Unmeasured:
    """Return GiB a second of the mover's copies; a move waits besides."""
    return moved.bytes_moved / moved.copy_seconds / GIB if moved.copy_seconds else NOT_COPIED
