"""The checkpoints of a user: one file each, in the user data folder. Written atomically; checked when read.

Works on any thread but the engine's, which continues to serve. Handles images and files, no sessions.
"""

from __future__ import annotations

import errno
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from heapq import nlargest
from pathlib import Path
from typing import Any, BinaryIO, Final, TypeVar

import msgspec
import torch

from djinn_jupyter._version import __version__
from djinn_jupyter.engine.store import records
from djinn_jupyter.engine.store.identity import ModelIdentity, check_identity
from djinn_jupyter.engine.store.image import SessionImage, TapImage, TensorTable, decode
from djinn_jupyter.errors import CheckpointRefused, UnknownCheckpoint, UsageError
from djinn_jupyter.files import (
    PART,
    Abandoned,
    atomic_write,
    force,
    force_names,
    make_folder,
    open_plain,
    told_of_disk,
)
from djinn_jupyter.wire.base import Frozen, known_to_the_same, person_of
from djinn_jupyter.wire.keys import settled_stamp
from djinn_jupyter.wire.nouns import CheckpointDescription
from djinn_jupyter.wire.sessions import Checkpoints
from djinn_jupyter.wire.texts import few_of, in_quotes, sendable, shown

SUFFIX: Final = ".djinn"
LONGEST_NAME: Final = 100
HEAD_BYTES: Final = 1 << 16  # more than the description of any checkpoint
MOST_LISTED: Final = 1000  # files of which a list reads the beginning
ABANDONED_SECONDS: Final = 24 * 3600.0  # a file that is being written changes all the time
CRAFTED: Final = (ArithmeticError, AttributeError, LookupError, MemoryError, RuntimeError, TypeError, ValueError)
"""Errors caused by files with sound checksums whose content no session can have."""
_NO_LINKS: Final = {errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS}  # file systems without hard links


class Label(Frozen, frozen=True):
    """The first record of a file: its checkpoint's description and its model. `bytes_stored` is set on reading."""

    checkpoint: CheckpointDescription
    model: ModelIdentity


class CheckpointFolder:
    """The checkpoints of an engine: maps names to files. The first save creates the folder. Only `count`, `save`,
    `list`, `drop` and `load` may wait."""

    def __init__(self, folder: Path, identity: ModelIdentity, device: torch.device) -> None:
        self.folder, self.identity, self.device = folder, identity, device
        self._sizes: dict[str, int] = {}
        self._stamp: int | None = None  # of the folder when they were counted

    def count(self) -> None:
        """Do nothing: the sizes of files are read on demand."""

    def file_of(self, name: str) -> Path:
        """Return the path of a checkpoint to be saved under `name`. Raises UsageError for an invalid name."""
        strange = {c for c in name if c in '/\\:*?"<>|' or not c.isprintable()}
        if strange or name.startswith(".") or len(name.encode()) > LONGEST_NAME or name != name.strip():
            raise UsageError(
                f"{in_quotes(name)} cannot be the name of a checkpoint: up to {LONGEST_NAME} bytes, not "
                "beginning with a dot, without slashes and other characters that file systems refuse."
            )
        return self.folder / f"{name}{SUFFIX}"

    def find(self, name: str) -> Path:
        """Return the file of a checkpoint, by its name or by a path. UnknownCheckpoint lists the existing names."""
        if "/" in name:
            return _file_at(name)
        wanted = name.removesuffix(SUFFIX)
        with suppress(UsageError):  # a file from elsewhere may have a name that no save uses
            if (path := self.file_of(wanted)).is_file():
                return path
        files = {_shown(path): path for path in self._files()}
        if wanted in files:
            return files[wanted]
        self.file_of(wanted)
        raise unknown(name, files)

    def load(self, name: str) -> tuple[SessionImage, str]:
        """Return the checkpoint that `find` finds, and its place for messages. Not for the engine's thread."""
        path = self.find(name)
        return self.read(path), str(path)

    def require_free(self, name: str) -> None:
        if self.size_of(name):
            raise name_taken(name)

    def size_of(self, name: str) -> int:
        """Return the bytes of the file of that name, 0 without one."""
        with suppress(FileNotFoundError):
            return self.file_of(name).stat().st_size
        return 0

    def bytes_by_person(self) -> dict[str | None, int]:
        """Return the bytes of each person's files, None being the engine's own user."""
        found = Counter[str | None]()
        for name, size in self.sizes().items():
            found[person_of(name)] += size
        return found

    def sizes(self) -> dict[str, int]:
        """Return the bytes of each file by its name."""
        stamp = settled_stamp(self.folder)
        if stamp is None or stamp != self._stamp:
            found: dict[str, int] = {}
            for path in self._files():
                with suppress(FileNotFoundError):  # deleted just now
                    found[path.name] = path.stat().st_size
            self._sizes, self._stamp = found, stamp
        return self._sizes

    def _files(self) -> Iterable[Path]:
        return self.folder.glob(f"*{SUFFIX}")

    def _clear(self) -> None:
        """Delete files that killed engines were writing here; spare those that others may be writing now."""
        for path in self.folder.glob(f".*{PART}"):
            with suppress(OSError):
                if time.time() - path.stat().st_mtime > ABANDONED_SECONDS:
                    path.unlink()

    def save(
        self, name: str, image: SessionImage, entry: CheckpointDescription, *, replace: bool, abandoned: threading.Event
    ) -> tuple[CheckpointDescription, str]:
        """Write the file under a temporary name, then rename it when it is complete and on the disk. Raises
        StorageFailed when the disk refuses, leaving nothing behind; UsageError when the name was taken meanwhile."""
        path = self.file_of(name)
        body, arrays = TensorTable(self.device).encode(image)
        label = msgspec.msgpack.encode(Label(checkpoint=entry, model=self.identity))
        with told_of_disk(f"The checkpoint {in_quotes(name)} could not be written to {self.folder}"):
            make_folder(self.folder)
            self._clear()
            with atomic_write(path) as (file, aside):
                writer = records.Writer(file)
                writer.begin()
                writer.record(records.LABEL, label)
                for head, tensor in arrays:
                    if abandoned.is_set():
                        raise Abandoned
                    writer.array(head, tensor)
                writer.record(records.SESSION, body)
                _to_disk(file)
                if abandoned.is_set():
                    raise Abandoned
                _put_in_place(aside, path, name, replace=replace)
            force_names(self.folder)
        return msgspec.structs.replace(entry, bytes_stored=writer.written), str(path)

    def read(self, path: Path, where: str | None = None) -> SessionImage:
        """Return the checkpoint in a file, every byte of it checked. CheckpointRefused has the reason why it is not one
        of this model; messages name the file as it is, or as `where`."""
        named = where or str(path)
        with told_of_disk(f"{named} could not be read"), open_plain(path) as file:
            try:
                return self._read(file)
            except CheckpointRefused as refused:
                raise CheckpointRefused(f"{named} is refused. {refused}") from None
            except CRAFTED as error:
                why = str(error).split("\n", 1)[0].rstrip(".") or type(error).__name__
                raise CheckpointRefused(f"{named} is refused. Djinn did not write it so: {why}.") from None

    def _read(self, file: BinaryIO) -> SessionImage:
        reader = records.RecordReader(file)
        check_identity(_label(reader).model, self.identity)
        found: dict[int, records.FoundRecord] = {}
        while (record := _required(reader.next())).kind == records.ARRAY:
            assert record.head is not None
            found[record.head.number] = record
        if record.kind != records.SESSION or reader.next() is not None:
            raise records.Damaged
        return decode(reader.body(record), SessionImage, records.arrays_of(reader, found, self.device))

    def list(self, person: str | None = None) -> Checkpoints:
        """Return a person's checkpoints (all for None), newest first, without other files and those damaged at their
        beginning. Of many files, the MOST_LISTED written last are read."""
        files = [path for path in self._files() if person is None or person_of(path.name) == person]
        last = files if len(files) <= MOST_LISTED else nlargest(MOST_LISTED, files, key=_written)
        return listed(map(entry_of, last), len(files) - len(last))

    def drop(self, name: str) -> None:
        path = self.find(name)
        if path.parent != self.folder:
            raise UsageError(f"{path} lies outside {self.folder}; delete it yourself.")
        with told_of_disk(f"The checkpoint {in_quotes(name)} could not be deleted"):
            path.unlink()


def listed(found: Iterable[CheckpointDescription | None], left_out: int) -> Checkpoints:
    """Return what was read of each, the newest first."""
    return Checkpoints(checkpoints=tuple(sorted(filter(None, found), key=lambda one: -one.saved)), left_out=left_out)


def _written(path: Path) -> float:
    with suppress(FileNotFoundError):  # deleted just now
        return path.stat().st_mtime
    return 0.0


def name_taken(name: str) -> UsageError:
    return UsageError(
        f"There is a checkpoint {in_quotes(name)} already; choose another name, or replace it (--replace)."
    )


def unknown(name: str, known: Iterable[str]) -> UnknownCheckpoint:
    names = few_of(known_to_the_same(name, known), name)
    return UnknownCheckpoint(f"There is no checkpoint {in_quotes(name)}; there are: {names}.")


def describe(name: str, image: SessionImage, model: str, dtype: str) -> CheckpointDescription:
    """Return the list entry of a checkpoint that is about to be written."""
    frame = None if image.frame is None else image.frames[image.frame]
    return CheckpointDescription(
        name=name,
        session=image.name,
        model=model,
        dtype=dtype,
        tokens=len(image.tokens),
        stopped_at=None if frame is None or frame.tap is None else _site_of(image, frame.tap),
        step=None if frame is None else frame.step,
        bytes_stored=0,
        saved=time.time(),
        version=__version__,
    )


def _site_of(image: SessionImage, tap: TapImage) -> str:
    """Return the site of the present stop in its spelling: with the selector of its breakpoint."""
    met = None if image.history.present is None else image.history.stops[image.history.present].breakpoint
    return str(tap.site) if met is None else met.site


def _label(reader: records.RecordReader) -> Label:
    found = _required(reader.next(HEAD_BYTES))
    if found.kind != records.LABEL:
        raise records.Damaged
    return decode(reader.body(found), Label)


def _required(found: records.FoundRecord | None) -> records.FoundRecord:
    """Return `found`. Raises Torn where the file has ended."""
    if found is None:
        raise records.Torn
    return found


def entry_of(path: Path) -> CheckpointDescription | None:
    """Return a file's list entry under the file's own name, since it may have been renamed or come from elsewhere."""
    try:
        with open_plain(path) as file:
            entry = _label(records.RecordReader(file)).checkpoint
            size = os.fstat(file.fileno()).st_size
    except (OSError, CheckpointRefused):
        return None
    return msgspec.structs.replace(entry, name=_shown(path), bytes_stored=size)


def _shown(path: Path) -> str:
    """Return a checkpoint's name by its file, in a form to show and to request: not every file name is text."""
    return shown(sendable(path.name.removesuffix(SUFFIX)))


def _file_at(name: str) -> Path:
    """Return the file of a checkpoint that is given by its path."""
    if "://" in name:
        raise UsageError(
            f"{in_quotes(name)} is an address: an engine that is started with --checkpoints {name.rpartition('/')[0]} "
            "has the checkpoints there by their names."
        )
    try:
        path = Path(name).expanduser()
        there = path.is_file()
    except (OSError, ValueError, RuntimeError) as error:  # path too long, with a null, of an unknown user
        raise UnknownCheckpoint(f"There is no file {in_quotes(name)}: {str(error).rstrip('.')}.") from None
    if not path.is_absolute():
        raise UsageError(f"{in_quotes(name)} is neither the name of a checkpoint nor a full path.")
    if not there:
        raise UnknownCheckpoint(f"There is no file {path}.")
    return path


def _to_disk(file: BinaryIO) -> None:
    file.flush()
    force(file.fileno())


def _put_in_place(aside: Path, path: Path, name: str, *, replace: bool) -> None:
    if not replace:
        try:
            os.link(aside, path)  # unlike a rename it fails where the name is taken
            return
        except FileExistsError:
            raise name_taken(name) from None
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
        if path.exists():
            raise name_taken(name)
    aside.replace(path)


Outcome = TypeVar("Outcome")
UntilDone = Callable[[Future[Any]], Generator[None, None, Any]]
"""`Scheduler.until_done` of an engine."""


class FileWorker:
    """One thread, started when first needed; it works in order."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._thread: ThreadPoolExecutor | None = None

    def start(self, work: Callable[[], Outcome]) -> Future[Outcome]:
        if self._thread is None:
            self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix=self._name)
        return self._thread.submit(work)

    def close(self) -> None:
        """Return when all work is done."""
        if self._thread is not None:
            self._thread.shutdown()
            self._thread = None
