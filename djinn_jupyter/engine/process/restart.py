"""Restart of a broken engine: the process executes its own command line again, with the same pid, log and options, and
recovers its sessions as after a crash. At most MOST times in PERIOD_SECONDS; a lock keeps out a second engine."""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, NoReturn

from jupyter_core.paths import jupyter_runtime_dir

from djinn_jupyter.errors import UsageError
from djinn_jupyter.options import Identity
from djinn_jupyter.wire.own import open_own
from djinn_jupyter.wire.registry import FOLDER, LOCK_SUFFIX

log = logging.getLogger(__name__)

MOST: Final = 3
PERIOD_SECONDS: Final = 3600.0
LOCK_SECONDS: Final = 5.0
_LOOK_SECONDS: Final = 0.05
_OF_THE_FIRST_START: Final = ("--launcher-pipe", "--launcher-lock", "--restarted-at")


class Restarts:
    """`before` are the times of this process's restarts, by the monotonic clock, which all processes of a machine share
    and which is never set back."""

    def __init__(self, before: Sequence[float] = ()) -> None:
        self._recent = [at for at in before if time.monotonic() - at < PERIOD_SECONDS]
        self._lock: int | None = None

    @property
    def allowed(self) -> bool:
        return len(self._recent) < MOST

    def hold_lock(self, identity: Identity) -> None:
        """Take the launch lock: clients that load the model from now on wait for the restarted engine, as for one that
        another client starts. Called while the old entry can still be found."""
        import fcntl  # missing on platforms where engines cannot run

        path = Path(jupyter_runtime_dir()) / FOLDER / f"{identity.slug()}{LOCK_SUFFIX}"
        try:
            lock = open_own(path, os.O_RDWR | os.O_CREAT)
        except (OSError, UsageError) as error:
            log.warning("A second engine of the model may start: %s", error)
            return
        deadline = time.monotonic() + LOCK_SECONDS
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                self._lock = lock
                return
            except BlockingIOError:
                if time.monotonic() > deadline:
                    log.warning("Another process is loading the model just now; a second engine of it may start")
                    os.close(lock)
                    return
            time.sleep(_LOOK_SECONDS)

    def begin(self) -> NoReturn:
        """Restart: this process becomes the new engine. Does not return."""
        options = [f"--restarted-at={at}" for at in (*self._recent, time.monotonic())]
        if self._lock is not None:
            os.set_inheritable(self._lock, True)
            options.append(f"--launcher-lock={self._lock}")
        logging.shutdown()
        sys.stderr.flush()
        os.execv(sys.executable, [sys.executable, *_without(sys.orig_argv[1:], _OF_THE_FIRST_START), *options])


def _without(arguments: Sequence[str], options: Sequence[str]) -> Iterator[str]:
    """Yield the arguments without these options and their values."""
    value_follows = False
    for argument in arguments:
        name, equals, _ = argument.partition("=")
        if not value_follows and name not in options:
            yield argument
        value_follows = not value_follows and name in options and not equals
