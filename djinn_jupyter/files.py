"""Stamps of a model's files at load: size, time and inode of each, and which were missing. Needs no torch: the engine
compares before it computes, a kernel before it attaches."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import stat
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, Final

from djinn_jupyter._version import __version__
from djinn_jupyter.errors import StorageFailed

Stamp = tuple[int, int, int]
Stamps = Mapping[str, Stamp | None]
"""By path: bytes, time of the last write in nanoseconds, inode; None where there was no file."""

_THERE: Final = ("*.safetensors", "pytorch_model*.bin", "*.index.json", "*.model", "*.py")
_COULD_COME: Final = (
    "adapter_config.json",
    "adapter_model.bin",
    "added_tokens.json",
    "chat_template.jinja",
    "config.json",
    "generation_config.json",
    "merges.txt",
    "model.safetensors",
    "model.safetensors.index.json",
    "special_tokens_map.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "vocab.json",
    "vocab.txt",
)


def stamp_of(path: str | Path) -> Stamp | None:
    """Return the stamp of the file behind a path; None where there is none."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_size, found.st_mtime_ns, found.st_ino


def stamps_in(folder: Path) -> dict[str, Stamp | None]:
    """Return the stamps of the files that a load of the folder reads or would read if they existed; for a snapshot in
    the hub's cache also of the names that lead to it."""
    there = [path.name for pattern in _THERE for path in folder.glob(pattern)]
    paths = [folder / name for name in sorted({*there, *_COULD_COME})]
    if folder.parent.name == "snapshots":
        refs = sorted(path for path in (folder.parents[1] / "refs").rglob("*") if _leads_to(path, folder.name))
        paths += refs
    return {str(path): stamp_of(path) for path in paths}


def first_change(stamps: Stamps) -> str | None:
    """Return in words the change of the first changed file; None where all are unchanged."""
    for path, was in stamps.items():
        if (now := stamp_of(path)) != was:
            return f"{Path(path).name} {_happened(was, now)}"
    return None


def _happened(was: Stamp | None, now: Stamp | None) -> str:
    if now is None or was is None:
        return "is not there any more" if now is None else "is new"
    if now[0] < was[0]:
        return f"was cut short: it has {now[0]:,} bytes and had {was[0]:,}"
    return "was written to" if now[2] == was[2] else "was replaced by another file"


def _leads_to(path: Path, commit: str) -> bool:
    try:
        return path.is_file() and path.read_text().strip() == commit
    except (OSError, ValueError):
        return False


# Open files in folders where any user may have put anything: only plain files are opened, and no open blocks.

UNBLOCKED: Final = getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
"""Flags, of which Windows has the last alone."""


def is_plain(path: Path) -> bool:
    """True for a regular file, False for a link to one. Raises OSError."""
    return stat.S_ISREG(path.lstat().st_mode)


def open_plain(path: Path, *, linked: bool = True) -> BinaryIO:
    """Open a regular file for reading, through a link if `linked`. Raises OSError; a pipe does not block."""
    descriptor = os.open(path, os.O_RDONLY | UNBLOCKED | (0 if linked else os.O_NOFOLLOW))
    try:
        found = os.fstat(descriptor).st_mode
        if stat.S_ISDIR(found):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        if not stat.S_ISREG(found):
            raise OSError(errno.EINVAL, "it is no regular file")
        return os.fdopen(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def contents_of(path: Path) -> bytes:
    """Return the bytes of a regular file. Raises OSError, also for want of memory."""
    with open_plain(path) as file:
        try:
            return file.read()
        except (MemoryError, OverflowError):
            raise OSError(errno.ENOMEM, "it is larger than the memory that is left") from None


# A new file beside the one that it replaces once it is complete. Knows no format.

PART: Final = ".part"


class Abandoned(Exception):
    """No request waits for the file any more."""


@contextmanager
def atomic_write(path: Path, *, prefix: str = ".") -> Iterator[tuple[BinaryIO, Path]]:
    """Yield a new file beside `path`, deleted at the end unless it was renamed."""
    descriptor, name = tempfile.mkstemp(prefix=prefix, suffix=PART, dir=path.parent)
    try:
        with os.fdopen(descriptor, "wb") as file:
            yield file, Path(name)
    finally:
        Path(name).unlink(missing_ok=True)


@contextmanager
def written_alone(path: Path) -> Iterator[tuple[BinaryIO, Path]]:
    """Yield a new file, and its path, which becomes `path` at the end of this block; then both are on the disk. For a
    file that no other process writes: what killed ones left of it is deleted."""
    make_folder(path.parent)
    prefix = f".{path.name}."
    for left in path.parent.glob(f"{prefix}*{PART}"):
        left.unlink(missing_ok=True)
    with atomic_write(path, prefix=prefix) as (file, aside):
        yield file, aside
        file.flush()
        force(file.fileno())
        aside.replace(path)
    force_names(path.parent)


@contextmanager
def told_of_disk(what: str, then: str = "", faults: tuple[type[Exception], ...] = (OSError,)) -> Iterator[None]:
    """Make the disk's errors in this block StorageFailed, with what could not be done, why, and what `then` holds."""
    try:
        yield
    except faults as error:
        raise StorageFailed(f"{what}: {getattr(error, 'strerror', None) or error}.{then and ' '}{then}") from error


def require_writable(path: Path) -> None:
    """Raise OSError where no file could be written at `path`, whose folder may not exist yet. Writes nothing."""
    there = next(folder for folder in path.parents if folder.exists())
    if not there.is_dir():
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
    if not os.access(there, os.W_OK | os.X_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))


# Flush writes to disk so that they survive a loss of power: files, names in folders, folders. After a power loss a file
# is found only if its name is on the disk, and a name only if its folder's name is. Knows nothing about the files'
# contents. Waits for the disk, so never call it on the engine's thread while that serves.

_REFUSED: Final = {errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP}  # file systems that need no flush raise these
_ON_MACOS: Final = sys.platform == "darwin"
_FULL: Final = 51  # F_FULLFSYNC of macOS, whose `fsync` leaves data in the drive's cache


def force(descriptor: int) -> None:
    """Return when the bytes and the length of an open file are on the disk. Raises OSError."""
    if not _fully(descriptor):
        getattr(os, "fdatasync", os.fsync)(descriptor)


def force_file(path: Path) -> None:
    """Flush to disk a file that a finished process wrote. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        force(descriptor)
    finally:
        os.close(descriptor)


def force_names(folder: Path) -> None:
    """Return when the creations, renames and removals in a folder are on the disk. Raises OSError."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        if not _fully(descriptor):
            os.fsync(descriptor)
    except OSError as error:
        if error.errno not in _REFUSED:
            raise
    finally:
        os.close(descriptor)


def _fully(descriptor: int) -> bool:
    """Flush with macOS's F_FULLFSYNC. True if the system and the file system support it."""
    if not _ON_MACOS:
        return False
    import fcntl  # missing on platforms where engines cannot run

    try:
        fcntl.fcntl(descriptor, _FULL)
    except OSError as error:
        if error.errno not in _REFUSED:
            raise
        return False
    return True


def make_folder(folder: Path) -> None:
    """Make a folder that only the user can read, with missing parents, and flush each name. Raises OSError."""
    missing = [one for one in (folder, *folder.parents) if not one.is_dir()]
    for one in reversed(missing):
        one.mkdir(mode=0o700, exist_ok=True)
        force_names(one.parent)


# Digests in a shard's note: of each tensor with its shape and dtype, and of the rest of the note. The engine that
# writes a shard and the kernel that reads it compute them here. Needs no torch.

WRITTEN: Final = "written"  # the entry of the note
NOTE: Final = "note"
_BYTES: Final = 16


def written(note: Mapping[str, Any], tensors: Mapping[str, str]) -> dict[str, Any]:
    """Return the entry for a note and the digests of its tensors by name."""
    return {"version": __version__, "tensors": dict(tensors), NOTE: of_note(note)}


def of_tensor(dtype: str, shape: Iterable[int], pieces: Iterable[bytes | memoryview]) -> str:
    """Return the digest of a tensor of a safetensors dtype, from its bytes in pieces."""
    digest = hashlib.blake2b(f"{dtype} {list(shape)} ".encode(), digest_size=_BYTES)
    for piece in pieces:
        digest.update(piece)
    return digest.hexdigest()


def of_note(note: Mapping[str, Any]) -> str:
    rest = {name: value for name, value in note.items() if name != WRITTEN}
    return hashlib.blake2b(json.dumps(rest, sort_keys=True).encode(), digest_size=_BYTES).hexdigest()


# Files of earlier versions: files of 79ba2cba are read like today's, older ones are refused. No other module knows a
# former format. 79ba2cba differs from today in two ways: shards of collections had no digests, and a training found a
# steering vector by the difference of means. Its journals, checkpoints, results and modules have today's formats.

FORMER: Final = "79ba2cba"
_OLDER_FORMAT: Final = 1  # of journals and checkpoints, in versions before it


def digests_in(note: Mapping[str, Any]) -> dict[str, Any]:
    """Return the entry with the digests in a shard's note. A note of 79ba2cba has none."""
    if WRITTEN in note:
        found: dict[str, Any] = note[WRITTEN]
        return found
    return {"tensors": None, NOTE: of_note(note)}


def was_trained(provenance: Mapping[str, Any]) -> bool:
    """Return whether a training found a steering vector, today by any method except the difference of means."""
    return "numpy" not in provenance["versions"]


def refusal(number: int, newest: int) -> str:
    """Return the remedy for a checkpoint or a journal's file in format `number`; this version reads `newest`."""
    if number > newest:
        return f"It has format {number}, which a newer Djinn wrote: upgrade Djinn to read it."
    if number == _OLDER_FORMAT:
        return (
            f"It has format {number}, of a version before {FORMER}: load it with Djinn {FORMER}, keep it there with "
            "%djinn_checkpoint NAME, and restore that here with %djinn_restore NAME."
        )
    return f"It has format {number}, which no version of Djinn wrote: it is damaged or not one of ours."
