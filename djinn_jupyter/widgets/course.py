"""A memory trace prepared for drawing: stacked bands, pooled to a few hundred columns; the same for canvas and SVG."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from djinn_jupyter.client.memory_trace import Reading, TracedTransfer
from djinn_jupyter.wire.names import label

COLUMNS: Final = 160
NAMED: Final = 6  # sessions with a band of their own; the rest share one
WEIGHTS_INK, EMPTY_INK, OTHERS_INK = "#8a8a8a", "rgba(128,128,128,.22)", "#5b6b7b"
RING_INK = "#b5b5b5"
SESSION_INKS: Final = ("#2e7ad6", "#e06c28", "#2a9d76", "#a06cc0", "#8c8c2c", "#56b4e9", "#b08968")


@dataclass(frozen=True, slots=True, kw_only=True)
class Band:
    """One layer of the stack: its bytes at each column."""

    name: str
    ink: str
    sizes: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryCourse:
    """The bytes on the device over time. `moves` are (at, True if out of the device)."""

    times: tuple[float, ...]
    bands: tuple[Band, ...]
    budget: int
    host: tuple[int, ...]
    disk: tuple[int, ...]
    moves: tuple[tuple[float, bool], ...]

    @property
    def high(self) -> int:
        """The top of the axis: the highest stack, and the budget where it is not far above."""
        stack = max(sum(band.sizes[i] for band in self.bands) for i in range(len(self.times)))
        return max(self.budget if self.budget < 3 * stack else 0, stack, 1)

    def message(self) -> dict[str, Any]:
        """Return the course as JSON values for the canvas."""
        return {
            "times": [round(at, 2) for at in self.times],
            "bands": [{"name": b.name, "ink": b.ink, "sizes": list(b.sizes)} for b in self.bands],
            "budget": self.budget,
            "high": self.high,
            "host": list(self.host),
            "disk": list(self.disk),
            "moves": [[round(at, 2), out] for at, out in self.moves],
        }


def course_of(readings: Sequence[Reading], moves: Sequence[TracedTransfer]) -> MemoryCourse:
    """Return the course at no more than COLUMNS moments: of each block of readings the one with most bytes."""
    kept = _pooled(readings)
    names = _largest(kept)
    streams = any(r.ring for r in kept)
    name = "weights that stay" if streams else "weights"
    bands = [Band(name=name, ink=WEIGHTS_INK, sizes=tuple(r.weights for r in kept))]
    if streams:
        bands.append(Band(name="ring", ink=RING_INK, sizes=tuple(r.ring_bytes for r in kept)))
    for ink, name in zip(SESSION_INKS, names, strict=False):
        bands.append(Band(name=label(name), ink=ink, sizes=tuple(dict(r.sessions).get(name, 0) for r in kept)))
    rest = tuple(sum(size for name, size in r.sessions if name not in names) for r in kept)
    if any(rest):
        bands.append(Band(name="other sessions", ink=OTHERS_INK, sizes=rest))
    bands.append(Band(name="empty pages", ink=EMPTY_INK, sizes=tuple(r.empty for r in kept)))
    if any(r.others for r in kept):
        bands.append(Band(name="other programs", ink="#c9b458", sizes=tuple(r.others or 0 for r in kept)))
    return MemoryCourse(
        times=tuple(r.at for r in kept),
        bands=tuple(bands),
        budget=kept[-1].budget,
        host=tuple(r.host for r in kept),
        disk=tuple(r.disk for r in kept),
        moves=tuple((m.at, m.transfer.direction == "out") for m in moves if m.at >= kept[0].at),
    )


def _pooled(readings: Sequence[Reading]) -> list[Reading]:
    block = -(-len(readings) // COLUMNS)
    if block == 1:
        return list(readings)
    stretches = [readings[i : i + block] for i in range(0, len(readings), block)]
    return [max(stretch, key=lambda reading: reading.accounted) for stretch in stretches]


def _largest(readings: Sequence[Reading]) -> list[str]:
    """Return the names of the sessions with the highest peak of bytes; all of them where they are few."""
    most: dict[str, int] = {}
    for reading in readings:
        for name, size in reading.sessions:
            most[name] = max(most.get(name, 0), size)
    return sorted(sorted(most, key=lambda name: (-most[name], name))[:NAMED])
