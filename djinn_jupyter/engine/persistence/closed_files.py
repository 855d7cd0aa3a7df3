"""The journal's files of closed sessions, which are deleted so that none of them comes back."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import suppress
from queue import Empty, SimpleQueue

from djinn_jupyter.engine.persistence.file_worker import FileWorker
from djinn_jupyter.engine.persistence.journal_file import JournalFiles
from djinn_jupyter.engine.persistence.journal_folder import JournalFolder

log = logging.getLogger(__name__)


class ClosedFiles:
    """Used on the engine's thread. Where what is reported is forced first, the thread of the journal deletes, for that
    may take long; what it has done by then is known after `settle`. `lingering` are those that could not be deleted."""

    def __init__(self, own: JournalFolder, thread: FileWorker) -> None:
        self._own, self._thread = own, thread
        self._under_way: list[tuple[str, JournalFiles, Future[None]]] = []
        self._removed: SimpleQueue[JournalFiles] = SimpleQueue()
        self.lingering: dict[str, JournalFiles] = {}

    def remove(self, name: str, files: JournalFiles) -> None:
        if self._own.forces_first:
            self._under_way.append((name, files, self._thread.start(files.remove)))
            return
        try:
            files.remove()
        except OSError as error:
            self._linger(name, files, error)
        else:
            self._close(name, files)

    def remove_again(self) -> None:
        """Try once more to delete what could not be deleted."""
        for name, files in tuple(self.lingering.items()):
            if all(files is not other for _, other, _ in self._under_way):
                self.remove(name, files)

    def settle(self) -> bool:
        """Note what the thread has deleted. Return whether it had anything to delete."""
        under_way, self._under_way = self._under_way, []
        for name, files, removal in under_way:
            if not removal.done():
                self._under_way.append((name, files, removal))
            elif (error := removal.exception()) is not None:
                self._linger(name, files, error)
            else:
                self._close(name, files)
        return bool(under_way)

    def _linger(self, name: str, files: JournalFiles, error: BaseException) -> None:
        if not isinstance(error, OSError):
            raise error
        if name not in self.lingering:
            log.warning("The closed session %r may come back: %s", name, error.strerror or error)
        self.lingering[name] = files

    def _close(self, name: str, files: JournalFiles) -> None:
        if self.lingering.get(name) is files:
            del self.lingering[name]
        self._removed.put(files)
        self._thread.start(self._close_removed)

    def _close_removed(self) -> None:
        """Close all files that have been removed by now, and force their deletion to the disk at once: a batch that
        ends closes many sessions."""
        removed = list(self._taken())
        if not removed:
            return
        for files in removed:
            files.close()
        try:
            self._own.force_names()
        except OSError as error:
            log.warning("A closed session may come back after a loss of power: %s", error.strerror or error)

    def _taken(self) -> Iterator[JournalFiles]:
        with suppress(Empty):
            while True:
                yield self._removed.get_nowait()
