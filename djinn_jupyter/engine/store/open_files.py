"""The open files of a journal, opened on demand, so that a session takes no descriptor while it rests."""

from __future__ import annotations

import errno
import os
import threading
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, TypeVar

from djinn_jupyter.engine.system.process import limit_now

MOST_FILES: Final = 64
PART: Final = 8  # of what the process may open, at most this fraction
Done = TypeVar("Done")


class OpenFiles:
    """At most `most` stay open, beside those in use; the longest unused one is closed first, also where the process may
    open no more. A reopened file flushes earlier writes as well, and reports earlier unreported errors (Linux 4.16).
    Used from any thread."""

    def __init__(self, most: int | None = None) -> None:
        self._most, self._lock = most or min(MOST_FILES, limit_now() // PART), threading.RLock()
        self._open: OrderedDict[Path, int] = OrderedDict()
        self._used: Counter[Path] = Counter()

    def __len__(self) -> int:
        return len(self._open)

    @contextmanager
    def opened(self, path: Path, *, create: bool = False) -> Iterator[int]:
        """Give the descriptor of a file, for reading and writing. Raises OSError."""
        with self._lock:
            descriptor = self._descriptor(path, os.O_CREAT | os.O_EXCL if create else 0)
            self._used[path] += 1
        try:
            yield descriptor
        finally:
            with self._lock:
                self._used[path] -= 1
                while len(self._open) > self._most and self._close_one():
                    pass

    def with_room(self, work: Callable[[], Done]) -> Done:
        """Run work that opens files, again after closing one of these while the process may open no more."""
        while True:
            try:
                return work()
            except OSError as error:
                with self._lock:
                    if error.errno != errno.EMFILE or not self._close_one():
                        raise

    def close(self, path: Path) -> None:
        """Close a file that is no longer used."""
        with self._lock:
            if (descriptor := self._open.pop(path, None)) is not None:
                os.close(descriptor)
            del self._used[path]

    def _descriptor(self, path: Path, flags: int) -> int:
        if path not in self._open:
            self._open[path] = self.with_room(lambda: os.open(path, os.O_RDWR | os.O_CLOEXEC | flags, 0o600))
        self._open.move_to_end(path)
        return self._open[path]

    def _close_one(self) -> bool:
        """Close the longest unused file. Return False where all are in use."""
        resting = next((path for path in self._open if not self._used[path]), None)
        if resting is None:
            return False
        os.close(self._open.pop(resting))
        return True
