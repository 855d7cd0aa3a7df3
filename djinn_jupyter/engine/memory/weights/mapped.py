"""Find the host bytes that belong to mapped files, from the kernel's list of mappings; None where it has none."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from pathlib import Path

from torch import Tensor

MAPS = Path("/proc/self/maps")


def bytes_in_memory(pieces: Iterable[Tensor]) -> int | None:
    """Return how many of these bytes are this process's own memory: converted, drawn or pinned, and not part of a file.
    None where the system has no list of mappings."""
    try:
        lines = MAPS.read_text().splitlines()
    except OSError:
        return None
    files = sorted(_range(line) for line in lines if line.split()[4] != "0")
    return sum(piece.numel() for piece in pieces if not _within(files, piece.data_ptr()))


def _range(line: str) -> tuple[int, int]:
    begin, end = line.split(maxsplit=1)[0].split("-")
    return int(begin, 16), int(end, 16)


def _within(ranges: list[tuple[int, int]], address: int) -> bool:
    found = bisect_right(ranges, (address, 1 << 64)) - 1
    return found >= 0 and ranges[found][0] <= address < ranges[found][1]
