"""The running time of each person in a file beside the journal, so that a quota of the day outlives the engine.

ROOT/times/HOST-0     of the engine whose journal is in ROOT/HOST-0

The next engine with that folder continues it, and takes over those of engines whose folders are gone. A killed engine
loses the time of its last WRITTEN_SECONDS.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec

from djinn_jupyter.engine.session.table import STEP_SECONDS, RunningTime
from djinn_jupyter.files import PART, atomic_write, is_plain, make_folder

log = logging.getLogger(__name__)

TIMES: Final = "times"
WRITTEN_SECONDS: Final = 10.0


class _KeptTimes(msgspec.Struct, forbid_unknown_fields=True):
    """Seconds by step of each person; the engine's own user has no name."""

    step_seconds: float
    persons: dict[str, list[tuple[int, float]]]


class RunningTimesFile:
    """Written now and then while time is counted, and at the end. A failed write is retried; an unreadable file counts
    for nothing, which is logged."""

    def __init__(self, journal: Path, running_time: RunningTime, clock: Callable[[], float] = time.monotonic) -> None:
        self._path = journal.parent / TIMES / journal.name
        self._running_time, self._clock = running_time, clock
        self._written_at, self._counted = clock(), 0.0
        self._take_over()

    def attend(self) -> None:
        """Write the newly counted time, if due."""
        if self._clock() - self._written_at >= WRITTEN_SECONDS:
            self.write()

    def write(self) -> None:
        self._written_at = self._clock()
        if self._running_time.counted_seconds == self._counted:
            return
        persons = {person or "": steps for person, steps in self._running_time.steps().items()}
        try:
            make_folder(self._path.parent)
            with atomic_write(self._path) as (file, aside):
                file.write(msgspec.json.encode(_KeptTimes(step_seconds=STEP_SECONDS, persons=persons)))
                file.flush()
                aside.rename(self._path)
        except OSError as error:
            log.warning("The running time of persons cannot be kept: %s", error)
        else:
            self._counted = self._running_time.counted_seconds

    def _take_over(self) -> None:
        times, journals = self._path.parent, self._path.parent.parent
        there = [path for path in sorted(times.glob("*")) if is_plain(path) and not path.name.endswith(PART)]
        ended = [path for path in there if path == self._path or not (journals / path.name).exists()]
        for path in ended:
            kept = _read(path)
            for person, steps in kept.persons.items() if kept is not None else ():
                self._running_time.take_over(person or None, steps)
        self.write()
        for path in ended:
            if path != self._path and self._path.exists():
                path.unlink(missing_ok=True)


def _read(path: Path) -> _KeptTimes | None:
    try:
        kept = msgspec.json.decode(path.read_bytes(), type=_KeptTimes)
        if kept.step_seconds == STEP_SECONDS:
            return kept
        raise ValueError(f"its steps are of {kept.step_seconds} s")
    except (OSError, ValueError) as error:  # msgspec's errors are ValueErrors
        log.warning("The running time in %s counts for nothing: %s", path, error)
        return None
