"""The files of a journal: their names (a session's stem, then a rising number), writing and reading, their folder, and
those that are open."""

from __future__ import annotations

import errno
import logging
import os
import re
import secrets
import stat
import threading
from abc import ABC, abstractmethod
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO, Final, Protocol, TypeVar

import msgspec
import torch
from torch import Tensor

from djinn_jupyter._version import __version__
from djinn_jupyter.engine.store import records
from djinn_jupyter.engine.store.identity import ModelIdentity, check_identity
from djinn_jupyter.engine.store.image import ArrayHead, SessionImage, TensorTable, decode
from djinn_jupyter.engine.store.session_store import ImageSource, LeftBehind
from djinn_jupyter.engine.system.process import limit_now
from djinn_jupyter.errors import CheckpointRefused
from djinn_jupyter.files import force, force_file, force_names, is_plain, make_folder, open_plain
from djinn_jupyter.wire.base import Frozen
from djinn_jupyter.wire.texts import sendable

SUFFIX: Final = ".session"
_NAME: Final = re.compile(rf"(?P<stem>.+?)(\.(?P<number>[0-9]{{1,9}}))?{re.escape(SUFFIX)}")


@dataclass(frozen=True, slots=True, kw_only=True)
class JournalName:
    """Among the files of one `stem`, the one with the highest number that holds a whole image counts."""

    folder: Path
    stem: str
    number: int

    @property
    def path(self) -> Path:
        return self.folder / f"{self.stem}.{self.number}{SUFFIX}"

    def next(self) -> JournalName:
        return replace(self, number=self.number + 1)


def name_of(path: Path) -> JournalName:
    """Parse a file's name. A file without a number, which Djinn did not write, is the first of its stem."""
    found = _NAME.fullmatch(path.name)
    assert found is not None
    return JournalName(folder=path.parent, stem=found["stem"], number=int(found["number"] or 0))


def by_session(paths: Iterable[Path]) -> list[list[Path]]:
    """Group the files by session, highest number first; sessions in order of appearance."""
    groups: dict[str, list[Path]] = {}
    for path in paths:
        groups.setdefault(name_of(path).stem, []).append(path)
    return [sorted(group, key=lambda path: -name_of(path).number) for group in groups.values()]


# Write a session's files in the journal: images are appended to each other, and the last whole one counts. An array is
# written once, however many images refer to it. When most of a file is no longer referred to, a new one is begun
# (`JournalName`), and the old one is deleted when the new one has been forced to the disk: at each moment the last
# image that was written survives the death of the process, and the last that was forced survives a loss of power. What
# survives one is kept by `Durability`: the disk that the files are on, or a store.

SLACK_BYTES: Final = 4 << 20
EXCESS_BYTES: Final = 64 << 20
GATHERED_BYTES: Final = 1 << 16


class JournalLabel(Frozen, frozen=True):
    """The first record of a session's file in the journal."""

    version: str
    model: ModelIdentity


class JournalFile:
    """One file that images are appended to, and the files that it replaces (`replaced`) once it is durable.

    The engine's thread calls `append`, the forcing thread `force` and `close`.
    """

    def __init__(
        self, path: Path, replaced: tuple[Path, ...], durability: Durability, open_files: OpenFiles | None = None
    ) -> None:
        self.path, self.replaced, self._durability = path, replaced, durability
        self.length = 0
        self.broken = self.named = False
        self._open_files = OpenFiles() if open_files is None else open_files
        with self._open_files.opened(path, create=True):
            pass

    def opened(self) -> AbstractContextManager[int]:
        """Return the context in which the file is open; it gives the descriptor. Raises OSError."""
        return self._open_files.opened(self.path)

    def append(self, write: Callable[[records.Writer], None]) -> None:
        """Append what `write` writes, all of it or nothing. Raises OSError."""
        with self.opened() as descriptor:
            sink = _Sink(descriptor, self.length)
            try:
                write(records.Writer(sink))
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
        self._open_files.with_room(lambda: self._durability.force(self))
        self.replaced = ()

    def close(self) -> None:
        with suppress(OSError):
            self._open_files.close(self.path)


class Durability(Protocol):
    """The place of files that survives a loss of power. Methods raise OSError."""

    def force(self, file: JournalFile, /) -> None:
        """Return when all that was appended to a file survives, and its name; then delete those that it replaces."""

    def force_found(self, paths: Sequence[Path], /) -> None:
        """Return when the last of a session's found files survives; then delete the others."""

    def remove(self, paths: Sequence[Path], /) -> None:
        """Delete a session's files, so that no later process finds them: oldest first, as no older image may return."""


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
    """Buffers small parts, so that an image takes a few writes; writes large parts from their own memory."""

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
    """A session whose images are in files (`StoredSession`)."""

    def __init__(
        self,
        name: JournalName,
        source: ImageSource,
        durability: Durability,
        open_files: OpenFiles | None = None,
        found: tuple[Path, ...] = (),
    ) -> None:
        """Continue after the files `found` of an earlier process, oldest first: the last counts until replaced."""
        self.found = found
        self._name, self._source, self._durability = name, source, durability
        self._open_files = OpenFiles() if open_files is None else open_files
        self._label = msgspec.msgpack.encode(JournalLabel(version=__version__, model=source.model))
        self._table = TensorTable(source.device)
        self._file: JournalFile | None = None
        self._retired: list[JournalFile] = []
        self._anew = False

    @property
    def wasteful(self) -> bool:
        return self._file is not None and self._file.length > 2 * self._table.bytes_met + SLACK_BYTES

    def begin_anew(self) -> None:
        self._anew = True

    def write(self, image: SessionImage, *, compact: bool = False) -> None:
        file = self._file
        bound = 4 * self._table.bytes_met + EXCESS_BYTES
        if file is None or file.broken or self._anew or compact or file.length > bound:
            self._write_anew(image)
        else:
            self._append(file, self._table, image)

    def _append(self, file: JournalFile, table: TensorTable, image: SessionImage, label: bytes | None = None) -> None:
        body, fresh = table.encode(image)
        try:
            file.append(lambda writer: self._put(writer, label, fresh, body))
        except BaseException:
            table.take_back()
            raise
        table.forget_unmet()

    def _put(
        self, writer: records.Writer, label: bytes | None, fresh: list[tuple[ArrayHead, Tensor]], body: bytes
    ) -> None:
        if label is not None:
            writer.begin()
            writer.record(records.LABEL, label)
        for head, tensor in fresh:
            writer.array(head, self._source.values(tensor))
        writer.record(records.SESSION, body)

    def _write_anew(self, image: SessionImage) -> None:
        replaced = self.found if self._file is None else (*self._file.replaced, self._file.path)
        self._name = self._name.next()
        file = JournalFile(self._name.path, replaced, self._durability, self._open_files)
        table = TensorTable(self._source.device)
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
        if self._file is None:
            self._durability.force_found(self.found)
        else:
            self._file.force()
        while self._retired:
            self._retired.pop().close()

    def close(self) -> None:
        for file in (*self._retired, *([] if self._file is None else [self._file])):
            file.close()

    def remove(self) -> None:
        """Delete the files, and release the session's tensors."""
        self._table = TensorTable(self._source.device)
        file = self._file
        self._durability.remove((*self.found, *(() if file is None else (*file.replaced, file.path))))


# Read the last whole image in a session's journal file. A process that was killed leaves a torn end; that is no
# damage.


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadJournal:
    """The content of a journal file. `damaged`: bytes within it differ from the written ones."""

    image: SessionImage
    damaged: bool


class Unfinished(CheckpointRefused):
    """The file ends before its first whole image does."""


def read_journal_file(path: Path, model: ModelIdentity, device: torch.device) -> ReadJournal:
    """Return the last image of a file, as `read_journal` does. Raises OSError too."""
    with open_plain(path, linked=False) as file:
        return read_journal(file, path.name, model, device)


def read_journal(file: BinaryIO, name: str, model: ModelIdentity, device: torch.device) -> ReadJournal:
    """Return the last image of a file, called `name` in messages. Raises CheckpointRefused where there is none
    (Unfinished: not yet), or one of another model or format."""
    try:
        reader = records.RecordReader(file)
    except records.NotOurs:
        refused = Unfinished if file.seek(0, os.SEEK_END) < records.PREFIX_BYTES else CheckpointRefused
        raise refused(f"{name} is no journal of Djinn.") from None
    last, arrays, damaged = _last(reader, model)
    if last is None:
        refused = CheckpointRefused if damaged else Unfinished
        raise refused(f"{name} holds no whole image of a session.")
    image = decode(reader.body(last), SessionImage, records.arrays_of(reader, arrays, device))
    return ReadJournal(image=image, damaged=damaged)


class _Named(msgspec.Struct):
    """The entry of any image that names its session; it has more."""

    name: str


def session_in(path: Path) -> str | None:
    """Return the name of the session in a file, of any model; None where no image of it is readable."""
    last: records.FoundRecord | None = None
    try:
        with open_plain(path, linked=False) as file:
            reader = records.RecordReader(file)
            with suppress(records.Torn, records.Damaged):
                while (found := reader.next()) is not None:
                    last = found if found.kind == records.SESSION else last
            return None if last is None else msgspec.msgpack.decode(reader.body(last), type=_Named).name
    except (CheckpointRefused, OSError, msgspec.MsgspecError, ValueError):
        return None


def _last(
    reader: records.RecordReader, model: ModelIdentity
) -> tuple[records.FoundRecord | None, dict[int, records.FoundRecord], bool]:
    """Return the last image before a torn or damaged end, the arrays before it, and True where there was damage."""
    last: records.FoundRecord | None = None
    arrays: dict[int, records.FoundRecord] = {}
    labelled = False
    try:
        while (found := reader.next()) is not None:
            if found.head is not None:
                arrays[found.head.number] = found
            elif found.kind == records.LABEL:
                check_identity(decode(reader.body(found), JournalLabel).model, model)
                labelled = True
            elif found.kind == records.SESSION and labelled:
                last = found
    except (records.Torn, records.Damaged) as end:
        return last, arrays, isinstance(end, records.Damaged)
    return last, arrays, False


# The folder of one engine's journal: its files, and those that are set aside. How an engine comes to have a folder for
# itself is known by `LockedFolder` (one machine), `LeasedFolder` and `StoredFolder` (several).

log = logging.getLogger(__name__)

ASIDE: Final = "aside"
_KINDS: Final = {stat.S_IFLNK: "a link", stat.S_IFIFO: "a pipe", stat.S_IFDIR: "a folder", stat.S_IFSOCK: "a socket"}


class JournalFolder(ABC):
    """A store of sessions in files, one file or several for each (`SessionStore`)."""

    forces_first = False

    def __init__(self, folder: Path, durability: Durability | None = None) -> None:
        self.folder, self.durability, self.open_files = folder, durability or Disk(), OpenFiles()
        self.left_out: dict[str, str] = {}

    @abstractmethod
    def release(self) -> None: ...

    @abstractmethod
    def require(self) -> None: ...

    def begin(self, source: ImageSource) -> JournalFiles:
        name = JournalName(folder=self.folder, stem=secrets.token_hex(8), number=-1)  # `next` gives the first
        return JournalFiles(name, source, self.durability, self.open_files)

    def recover(self, source: ImageSource) -> list[LeftBehind]:
        """Return the newest complete image of each session. Sessions that were set aside and fit again, for example
        because a model's files are as before, are among them."""
        self._take_back(source)
        found = [self._newest(files, source) for files in by_session(self.files(SUFFIX))]
        there = [one for one in found if one is not None]
        return sorted(there, key=lambda one: _written(_file_of(one)))

    def _take_back(self, source: ImageSource) -> None:
        there = {name_of(path).stem for path in self.files(SUFFIX)}
        for path in self.aside(SUFFIX):
            with suppress(Exception):  # it stays aside
                if name_of(path).stem not in there:
                    read_journal_file(path, source.model, source.device)
                    path.rename(self.folder / path.name)
                    log.info("%s fits this engine again, and comes back", path.name)

    def _newest(self, files: Sequence[Path], source: ImageSource) -> LeftBehind | None:
        """Return the newest usable image among one session's files (newest first)."""
        failed: list[tuple[Path, Exception]] = []
        for number, path in enumerate(files):
            try:
                read = read_journal_file(path, source.model, source.device)
            except Exception as error:  # noqa: BLE001  the start's edge: one file's error must not stop the others
                failed.append((path, error))
                continue
            if read.damaged:
                log.warning("%s was damaged; an image before the damage is used", path.name)
            for newer, why in failed:
                self._do_away_with(newer, why)
            found = tuple(reversed(files[number:]))
            stored = JournalFiles(name_of(files[0]), source, self.durability, self.open_files, found)
            return LeftBehind(image=read.image, stored=stored)
        for path, why in failed:
            self.put_aside(path, why, session_in(path))
        return None

    def _do_away_with(self, path: Path, why: Exception) -> None:
        """Remove a file that was to replace the used one. A file without a whole image is deleted."""
        if isinstance(why, Unfinished):
            with suppress(OSError):
                self.durability.remove([path])
        else:
            self.put_aside(path, why)

    def leave_out(self, found: LeftBehind, why: Exception) -> None:
        self.put_aside(_file_of(found), why, found.image.name)

    def files(self, suffix: str) -> list[Path]:
        """Return the plain files with that suffix. Anything else with it (a link, a pipe, a folder) is not ours."""
        found = sorted(self.folder.glob(f"*{suffix}"))
        for path in found:
            if not is_plain(path):
                self.put_aside(path, OSError(f"it is no plain file ({_kind(path)})"))
        return [path for path in found if path.exists() and is_plain(path)]

    def force_names(self) -> None:
        force_names(self.folder)

    def put_aside(self, path: Path, why: Exception, session: str | None = None) -> None:
        """Set a file aside, of this `session` if known, and log it; one that cannot be moved stays there."""
        if session is not None:
            self.left_out[session] = sendable(str(why))
        try:
            log.warning("A session of the journal is set aside as %s: %s", self.set_aside(path), why)
        except OSError as error:
            said = error.strerror or error
            log.warning("%s cannot be used (%s) nor set aside (%s); it stays where it is", path, why, said)

    def set_aside(self, path: Path) -> str:
        """Move a file where no process uses or deletes it; return its new address. Raises OSError."""
        folder = self.folder.parent / ASIDE
        make_folder(folder)
        target = unused(folder / path.name)
        path.rename(target)
        force_names(folder)
        return str(target)

    def aside(self, suffix: str) -> list[Path]:
        """Return the plain files with that suffix that were set aside, also by engines before."""
        return [path for path in sorted((self.folder.parent / ASIDE).glob(f"*{suffix}")) if is_plain(path)]

    def clear(self, suffix: str) -> None:
        for path in self.files(suffix):
            path.unlink(missing_ok=True)


def _file_of(found: LeftBehind) -> Path:
    assert isinstance(found.stored, JournalFiles)
    return found.stored.found[-1]


def _written(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


def unused(path: Path) -> Path:
    """Return the path, or one with a number after its stem where something exists."""
    number = 0
    while (
        found := path if not number else path.with_name(f"{path.stem}-{number}{path.suffix}")
    ).exists() or found.is_symlink():
        number += 1
    return found


def _kind(path: Path) -> str:
    return _KINDS.get(stat.S_IFMT(path.lstat().st_mode), "a device")


# The open files of a journal, opened on demand, so that a session takes no descriptor while it rests.

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
