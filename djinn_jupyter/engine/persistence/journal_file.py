"""Write a session's files in the journal: images are appended to each other, and the last whole one counts.

An array is written once, however many images refer to it. When most of a file is no longer referred to, a new one is
begun (`journal_names`), and the old one is deleted when the new one has been forced to the disk: at each moment the
last image that was written survives the death of the process, and the last that was forced survives a loss of power.
What a loss of power leaves is the disk that the files are on, or a store (`Medium`).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import Final, Protocol

import msgspec
import torch
from torch import Tensor

from djinn_jupyter._version import __version__
from djinn_jupyter.engine.persistence.identity import ModelIdentity
from djinn_jupyter.engine.persistence.image import SessionImage
from djinn_jupyter.engine.persistence.journal_names import JournalName
from djinn_jupyter.engine.persistence.open_files import OpenFiles
from djinn_jupyter.engine.persistence.records import LABEL, SESSION, Writer
from djinn_jupyter.engine.persistence.tensor_table import ArrayHead, TensorTable
from djinn_jupyter.fsync import force, force_file, force_names
from djinn_jupyter.wire.frozen import Frozen

SLACK_BYTES: Final = 4 << 20
EXCESS_BYTES: Final = 64 << 20
GATHERED_BYTES: Final = 1 << 16

ReadValues = Callable[[Tensor], Tensor]


class JournalLabel(Frozen, frozen=True):
    """The first record of a session's file in the journal."""

    version: str
    model: ModelIdentity


class JournalFile:
    """One file that images are appended to, and the files that it replaces (`replaced`) once the medium has it.

    The engine's thread calls `append`, the forcing thread `force` and `close`.
    """

    def __init__(
        self, path: Path, replaced: tuple[Path, ...], medium: Medium, open_files: OpenFiles | None = None
    ) -> None:
        self.path, self.replaced, self._medium = path, replaced, medium
        self.length = 0
        self.broken = self.named = False
        self._open_files = open_files or OpenFiles()
        with self._open_files.opened(path, create=True):
            pass

    def opened(self) -> AbstractContextManager[int]:
        """Return the context in which the file is open; it gives the descriptor. Raises OSError."""
        return self._open_files.opened(self.path)

    def append(self, write: Callable[[Writer], None]) -> None:
        """Append what `write` writes, all of it or nothing. Raises OSError."""
        with self.opened() as descriptor:
            sink = _Sink(descriptor, self.length)
            try:
                write(Writer(sink))
                sink.flush()
            except BaseException:
                self._cut(descriptor)
                raise
            self.length = sink.end

    def _cut(self, descriptor: int) -> None:
        try:
            os.ftruncate(descriptor, self.length)
        except OSError:
            self.broken = True

    def force(self) -> None:
        """Return when everything appended would survive a loss of power, and `replaced` is deleted. Raises OSError."""
        self._open_files.with_room(lambda: self._medium.force(self))
        self.replaced = ()

    def close(self) -> None:
        with suppress(OSError):
            self._open_files.close(self.path)


class Medium(Protocol):
    """The place of files that survives a loss of power. Methods raise OSError."""

    def force(self, file: JournalFile, /) -> None:
        """Return when all that was appended to a file survives, and its name; then delete those that it replaces."""

    def force_found(self, paths: Sequence[Path], /) -> None:
        """Return when the last of a session's found files survives; then delete the others."""

    def remove(self, paths: Sequence[Path], /) -> None:
        """Delete a session's files, so that no later process finds them: oldest first, so that no older image comes
        back either."""


class Disk:
    """The disk that the files are on."""

    def force(self, file: JournalFile) -> None:
        with file.opened() as descriptor:
            force(descriptor)
        if not file.named:
            force_names(file.path.parent)
            file.named = True
        self.remove(file.replaced)

    def force_found(self, paths: Sequence[Path]) -> None:
        for path in paths[-1:]:
            force_file(path)
        self.remove(paths[:-1])

    def remove(self, paths: Sequence[Path]) -> None:
        for path in paths:
            path.unlink(missing_ok=True)


class _Sink:
    """Buffers small parts, so that an image of a few arrays takes a few writes; writes large parts from their own
    memory."""

    def __init__(self, descriptor: int, at: int) -> None:
        self._descriptor, self.end = descriptor, at
        self._gathered = bytearray()

    def write(self, part: bytes | memoryview) -> int:
        if len(part) < GATHERED_BYTES:
            self._gathered += part
        if len(part) >= GATHERED_BYTES or len(self._gathered) >= GATHERED_BYTES:
            self.flush()
        if len(part) >= GATHERED_BYTES:
            self._put(memoryview(part))
        return len(part)

    def flush(self) -> None:
        self._put(memoryview(bytes(self._gathered)))
        self._gathered.clear()

    def _put(self, part: memoryview) -> None:
        while part:
            done = os.pwrite(self._descriptor, part, self.end)
            self.end += done
            part = part[done:]


class JournalFiles:
    """Invariant: `write` either returns and the image is the last of the session's files, or raises and the previous
    image still is. `values` returns a tensor's values on the host, whichever tier holds them."""

    def __init__(
        self,
        name: JournalName,
        model: ModelIdentity,
        device: torch.device,
        values: ReadValues,
        medium: Medium,
        open_files: OpenFiles | None = None,
    ) -> None:
        self._open_files = open_files or OpenFiles()
        self._name, self._device, self._values, self._medium = name, device, values, medium
        self._label = msgspec.msgpack.encode(JournalLabel(version=__version__, model=model))
        self._table = TensorTable(device)
        self._file: JournalFile | None = None
        self._found: tuple[Path, ...] = ()
        self._retired: list[JournalFile] = []
        self._anew = False
        self.bytes_written = 0

    def take_over(self, found: tuple[Path, ...]) -> None:
        """Adopt files of an earlier process, oldest first: the last counts until a new file replaces them."""
        self._found = found

    @property
    def wasteful(self) -> bool:
        """True where most of the file is no longer referred to."""
        return self._file is not None and self._file.length > 2 * self._table.bytes_met + SLACK_BYTES

    def begin_anew(self) -> None:
        """Have the next image written to a new file, with all its arrays: what was written cannot be forced to the
        disk."""
        self._anew = True

    def write(self, image: SessionImage, *, compact: bool = False) -> None:
        """Hand the image to the system, not yet forced. Raises OSError, CheckpointRefused for values that cannot be
        stored, and any error of reading values."""
        file = self._file
        if file is None or file.broken or self._anew or compact or self._excessive(file):
            self._write_anew(image)
        else:
            self._append(file, self._table, image)

    def _excessive(self, file: JournalFile) -> bool:
        return file.length > 4 * self._table.bytes_met + EXCESS_BYTES

    def _append(self, file: JournalFile, table: TensorTable, image: SessionImage, label: bytes | None = None) -> None:
        body, fresh = table.encode(image)
        before = file.length
        try:
            file.append(lambda writer: self._put(writer, label, fresh, body))
        except BaseException:
            table.take_back()
            raise
        table.forget_unmet()
        self.bytes_written += file.length - before

    def _put(self, writer: Writer, label: bytes | None, fresh: list[tuple[ArrayHead, Tensor]], body: bytes) -> None:
        if label is not None:
            writer.begin()
            writer.record(LABEL, label)
        for head, tensor in fresh:
            writer.array(head, self._values(tensor))
        writer.record(SESSION, body)

    def _write_anew(self, image: SessionImage) -> None:
        replaced = self._found if self._file is None else (*self._file.replaced, self._file.path)
        self._name = self._name.next()
        file, table = JournalFile(self._name.path, replaced, self._medium, self._open_files), TensorTable(self._device)
        try:
            self._append(file, table, image, self._label)
        except BaseException:
            file.close()
            with suppress(OSError):
                file.path.unlink(missing_ok=True)
            raise
        if self._file is not None:
            self._retired.append(self._file)
        self._file, self._table, self._anew = file, table, False

    # ---------------------------------------------------------------------------- on the thread that forces

    def force(self) -> None:
        """Return when the last image written, and its file's name, would survive a loss of power. Raises OSError."""
        file = self._file
        if file is None:
            self._medium.force_found(self._found)
        else:
            file.force()
        while self._retired:
            self._retired.pop().close()

    def close(self) -> None:
        for file in (*self._retired, *([] if self._file is None else [self._file])):
            file.close()

    # ---------------------------------------------------------------------------------------- at its end

    def remove(self) -> None:
        """Delete the files, so that the session does not come back after the death of the process, and release its
        tensors. Raises OSError."""
        self._table = TensorTable(self._device)
        file = self._file
        self._medium.remove((*self._found, *(() if file is None else (*file.replaced, file.path))))
