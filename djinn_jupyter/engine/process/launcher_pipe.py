"""The pipe to the launcher of this engine: its progress, then that it is ready or why it cannot start.

Also keeps the launcher's lock open until the engine is in the registry: if the launcher dies meanwhile, the next one
waits for this engine instead of starting a second.
"""

from __future__ import annotations

import os

from djinn_jupyter.wire.registry import Entry, Notice, Ready, encode_notice


class LauncherPipe:
    """Writes notices while the launcher reads. A launcher that has gone, or a missing one (None), is no error."""

    def __init__(self, descriptor: int | None, *, lock: int | None = None) -> None:
        self._descriptor, self._lock = descriptor, lock
        for inherited in (descriptor, lock):
            if inherited is not None:
                os.set_inheritable(inherited, False)

    def send(self, notice: Notice) -> None:
        if self._descriptor is None:
            return
        try:
            os.write(self._descriptor, encode_notice(notice))
        except BrokenPipeError:
            self._close_pipe()

    def ready(self, entry: Entry) -> None:
        """Send the last notice, once every client can find the entry; release the lock and close the pipe."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None
        self.send(Ready(entry=entry))
        self._close_pipe()

    def _close_pipe(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None
