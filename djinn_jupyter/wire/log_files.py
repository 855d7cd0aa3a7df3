"""The log files of an engine: at most so large, then begun anew beside a few older ones. Standard library only.

NAME.log  NAME.1.log  NAME.2.log ...     the latest, then older ones
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

LOG_SUFFIX: Final = ".log"
LOG_BYTES: Final = 5 * 2**20
OLDER_KEPT: Final = 3


def older(path: Path, number: int) -> Path:
    """Return the name of an older log; 1 is the one before."""
    return path.with_name(f"{path.name.removesuffix(LOG_SUFFIX)}.{number}{LOG_SUFFIX}")


def with_older(path: Path) -> list[Path]:
    """Return the log and those before it that there are, the oldest first."""
    return [one for one in (*(older(path, n) for n in range(OLDER_KEPT, 0, -1)), path) if one.exists()]


def rotate(path: Path) -> None:
    """Make the log the latest of the older ones, of which the oldest goes. Raises OSError."""
    for number in range(OLDER_KEPT, 1, -1):
        if older(path, number - 1).exists():
            older(path, number - 1).replace(older(path, number))
    path.replace(older(path, 1))
