"""One session's file in the journal: images appended to each other, of which the last whole one counts.

Arrays are written once, however many images refer to them; when most of a file is no longer referred to, it is written
anew. Writes on the journal's thread, is told what to write by the engine's.
"""

from __future__ import annotations

import os
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final

import msgspec
import torch
from torch import Tensor

from djinn_jupyter._version import __version__
from djinn_jupyter.engine.forcing import force, force_file, force_names
from djinn_jupyter.engine.keeping.berth import PART
from djinn_jupyter.engine.keeping.identity import ModelIdentity, check_identity
from djinn_jupyter.engine.keeping.image import SessionImage
from djinn_jupyter.engine.keeping.records import LABEL, SESSION, Damaged, NotOurs, OtherFormat, Reader, Torn, Writer
from djinn_jupyter.engine.keeping.shelf import ArrayHead, Shelf, decode, placed
from djinn_jupyter.errors import CheckpointRefused
from djinn_jupyter.wire.frozen import Frozen

SUFFIX: Final = ".session"
SLACK_BYTES: Final = 1 << 20


class JournalLabel(Frozen, frozen=True):
    """The first record of a session's file in the journal."""

    version: str
    model: ModelIdentity


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """What is to be written: an image, and the arrays in it that the file does not have yet. `anew`: as the first thing
    of a new file. `safe`: to the disk, not only to the operating system. `names_places`: of pages in another file."""

    body: bytes
    arrays: tuple[tuple[ArrayHead, Tensor], ...]
    anew: bool
    safe: bool
    names_places: bool = False


class Ledger:
    """The engine's side: what the file has, and what of it is still referred to."""

    def __init__(self, path: Path, device: torch.device) -> None:
        self.path, self._device = path, device
        self._begin()

    def _begin(self) -> None:
        self._shelf = Shelf(self._device)
        self._anew, self._bytes = True, 0

    @property
    def anew(self) -> bool:
        """Whether the next image is written with all its arrays, which then have to be there."""
        return self._anew

    def entry(self, image: SessionImage, *, safe: bool, away: bool = False) -> Entry | None:
        """The next image; None where it has new arrays whose values are elsewhere now. The values of new arrays are
        copied to the host: whoever owns them may move them later. `away`: what is not new may be elsewhere now."""
        if not away and self._bytes > 2 * self._shelf.bytes_met + SLACK_BYTES:
            self._begin()
        body, fresh = self._shelf.encode(image)
        if any(_emptied(tensor) for _, tensor in fresh):
            self._shelf.take_back(head.number for head, _ in fresh)
            return None
        self._shelf.forget_unmet()
        arrays = tuple((head, tensor.detach().to("cpu", copy=True)) for head, tensor in fresh)
        self._bytes += len(body) + sum(tensor.nbytes for _, tensor in arrays)
        there = image.places is not None
        entry = Entry(body=body, arrays=arrays, anew=self._anew, safe=safe or self._anew, names_places=there)
        self._anew = False
        return entry

    def begin_anew(self) -> None:
        """Something could not be written; the next image is the first of a new file."""
        self._begin()


def _emptied(tensor: Tensor) -> bool:
    """Whether its bytes have left: to read it would be to read beyond its memory."""
    return tensor.numel() > 0 and not tensor.untyped_storage().nbytes()


class LedgerFile:
    """The thread's side: the open file. Invariant: under its name there is always a file with a whole image."""

    def __init__(self, path: Path, model: ModelIdentity) -> None:
        self.path = path
        self._label = msgspec.msgpack.encode(JournalLabel(version=__version__, model=model))
        self._file: BinaryIO | None = None

    def write(self, entry: Entry) -> None:
        """Raises OSError; then the file is as good as it was, and entries are refused until one is `anew`."""
        if entry.anew:
            self._write_anew(entry)
            return
        if self._file is None:
            raise OSError("what came before it could not be written")
        try:
            self._append(self._file, entry)
        except BaseException:
            self.close()
            raise

    def _append(self, file: BinaryIO, entry: Entry) -> None:
        _write(Writer(file), entry)
        file.flush()
        if entry.safe:
            force(file.fileno())

    def _write_anew(self, entry: Entry) -> None:
        self.close()
        descriptor, name = tempfile.mkstemp(prefix=".", suffix=PART, dir=self.path.parent)
        file = os.fdopen(descriptor, "wb")
        try:
            writer = Writer(file)
            writer.begin()
            writer.record(LABEL, self._label)
            _write(writer, entry)
            file.flush()
            force(file.fileno())
            os.replace(name, self.path)
            force_names(self.path.parent)
        except BaseException:
            _close(file)
            Path(name).unlink(missing_ok=True)
            raise
        self._file = file

    def force(self) -> None:
        """What an earlier process left is there after a loss of power too. Raises OSError."""
        force_file(self.path)

    def remove(self) -> None:
        """It does not come back. Raises OSError."""
        self.close()
        self.path.unlink(missing_ok=True)
        force_names(self.path.parent)

    def close(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            _close(file)


def _close(file: BinaryIO) -> None:
    """What is still in its buffer could not be written, and closing tries once more; whoever wrote it has been told."""
    with suppress(OSError):
        file.close()


def _write(writer: Writer, entry: Entry) -> None:
    for head, tensor in entry.arrays:
        writer.array(head, tensor)
    writer.record(SESSION, entry.body)


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What a file of the journal gave. `damaged`: bytes within it are not those that were written."""

    image: SessionImage
    damaged: bool


def read_ledger(path: Path, model: ModelIdentity, device: torch.device) -> Found:
    """The last whole image in a file. A process that was killed leaves an end that is torn; that is no damage.

    CheckpointRefused where there is no image, or one of another model or format. Raises OSError.
    """
    with path.open("rb") as file:
        try:
            reader = Reader(file)
        except (NotOurs, OtherFormat) as error:
            raise CheckpointRefused(f"{path.name} is no journal of this version of Djinn ({error!r}).") from None
        bodies, arrays, damaged = _read(reader, model, device)
    for body in reversed(bodies):
        return Found(image=decode(body, SessionImage, arrays), damaged=damaged)
    raise CheckpointRefused(f"{path.name} holds no whole image of a session.")


def _read(reader: Reader, model: ModelIdentity, device: torch.device) -> tuple[list[bytes], dict[int, Tensor], bool]:
    body: list[bytes] = []
    arrays: dict[int, Tensor] = {}
    try:
        while (found := reader.next()) is not None:
            kind, content = found
            if isinstance(content, tuple):
                head, tensor = content
                arrays[head.number] = placed(head, tensor, device)
            elif kind == LABEL:
                check_identity(decode(content, JournalLabel, {}).model, model)
            elif kind == SESSION:
                body = [content]
    except Torn:
        pass
    except Damaged:
        return body, arrays, True
    return body, arrays, False
