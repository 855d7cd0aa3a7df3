"""Weights that are mapped from files: which bytes of the host those are, and whether the files are still the same."""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Iterable
from pathlib import Path

from torch import Tensor

from djinn_jupyter.errors import StorageFailed
from djinn_jupyter.file_stamps import Stamps, first_change, stamp_of

MAPS = Path("/proc/self/maps")
_WEIGHTS = (".safetensors", ".bin")


class MappedFiles:
    """The files of a model, `stamps` of when they were read, of which those are compared that its weights are mapped
    from: what is written there becomes another weight in the midst of a pass, and a read behind the end of one that is
    cut short ends the process (SIGBUS). A context of a pass: compared before and after it."""

    def __init__(self, stamps: Stamps) -> None:
        self.stamps = stamps
        mapped = [path for path, stamp in stamps.items() if stamp is not None and path.endswith(_WEIGHTS)]
        if (maps := _lines()) is not None:
            paths = {line.split(maxsplit=5)[5] for line in maps if "/" in line}
            mapped = [path for path in mapped if os.path.realpath(path) in paths]
        self.renew({path: stamps[path] for path in mapped})

    def now(self) -> Stamps:
        """Return the stamps as they are."""
        return {path: stamp_of(path) for path in self._mapped}

    def renew(self, stamps: Stamps) -> None:
        """Take these for what the weights are mapped from: they were loaded again."""
        self._mapped = dict(stamps)

    @property
    def changed(self) -> str | None:
        """Return in words what happened to a file; None where all are as they were."""
        return first_change(self._mapped)

    def require_unchanged(self) -> None:
        """Raise StorageFailed where a file is another by now, whose bytes would be the weights."""
        if (changed := self.changed) is not None:
            raise StorageFailed(
                f"{changed}, and this engine computes from that file: put the file back that was there, or stop this "
                "engine and load again."
            )

    def __enter__(self) -> None:
        self.require_unchanged()

    def __exit__(self, *_: object) -> None:
        self.require_unchanged()


def bytes_in_memory(pieces: Iterable[Tensor]) -> int | None:
    """Return how many of these bytes are this process's own memory: converted, drawn or pinned, and not part of a file.
    None where the system has no list of mappings."""
    lines = _lines()
    if lines is None:
        return None
    files = sorted(_range(line) for line in lines if line.split()[4] != "0")
    return sum(piece.numel() for piece in pieces if not _within(files, piece.data_ptr()))


def _lines() -> list[str] | None:
    try:
        return MAPS.read_text().splitlines()
    except OSError:
        return None


def _range(line: str) -> tuple[int, int]:
    begin, end = line.split(maxsplit=1)[0].split("-")
    return int(begin, 16), int(end, 16)


def _within(ranges: list[tuple[int, int]], address: int) -> bool:
    found = bisect_right(ranges, (address, 1 << 64)) - 1
    return found >= 0 and ranges[found][0] <= address < ranges[found][1]
