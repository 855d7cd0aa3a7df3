"""A new file beside the one whose place it takes once it is whole. Knows no format."""

from __future__ import annotations

import errno
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, Final

PART: Final = ".part"


class Abandoned(Exception):
    """No request waits for the file any more."""


@contextmanager
def written_aside(path: Path, *, prefix: str = ".") -> Iterator[tuple[BinaryIO, Path]]:
    """Yield a new file beside `path`, deleted at the end unless it was renamed."""
    descriptor, name = tempfile.mkstemp(prefix=prefix, suffix=PART, dir=path.parent)
    try:
        with os.fdopen(descriptor, "wb") as file:
            yield file, Path(name)
    finally:
        Path(name).unlink(missing_ok=True)


def require_writable(path: Path) -> None:
    """Raise OSError where no file could be written at `path`, whose folder may be missing yet. Writes nothing."""
    there = next(folder for folder in path.parents if folder.exists())
    if not there.is_dir():
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
    if not os.access(there, os.W_OK | os.X_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
