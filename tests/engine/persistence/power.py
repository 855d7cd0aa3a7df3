"""A disk that records the order of its operations, and the files that a power cut may leave.

`Disk` stands in for the functions of `os` by which files are changed. Forced changes are there after the cut; of the
rest any part may be: each 512 bytes of a write, each change of a folder. A rename is one change, as on every journaling
file system: it happened or it did not. Nothing is really forced, so recording costs no time.
"""

from __future__ import annotations

import io
import os
import random
import threading
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

import pytest

SECTOR: Final = 512
Lie = Literal["files", "folders", "pages"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Wrote:
    file: int
    at: int
    content: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Sized:
    file: int
    size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Named:
    """A name (a path below the root) leads to a file from here on, or with None to a folder; `was`: no more by that."""

    name: Path
    file: int | None
    was: Path | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Unnamed:
    name: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Forced:
    """All that was done to a file, or to the names in a folder, is on the disk."""

    what: int | Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """Something that a test wants to remember at this moment."""

    what: Any


@contextmanager
def not_waited_for() -> Iterator[None]:
    """Make `fsync` do nothing: these files need not outlive the machine; its disk would take most of a test's time."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("fsync", "fdatasync"):
            patch.setattr(os, name, lambda descriptor: None)
        yield


Deed = Wrote | Sized | Named | Unnamed | Forced | Said


class _Raw(io.FileIO):
    """The raw file below the buffer of `os.fdopen`; it records each write."""

    def __init__(self, disk: Disk, descriptor: int) -> None:
        super().__init__(descriptor, "wb")
        self._disk = disk

    def write(self, content: Any) -> int:
        with self._disk.alone:
            at, whole = self.tell(), bytes(content)
            done = super().write(whole)
            self._disk.did(Wrote(file=self._disk.descriptors[self.fileno()], at=at, content=whole[:done]))
            return done

    def close(self) -> None:
        if not self.closed:
            self._disk.descriptors.pop(self.fileno(), None)
        super().close()


@dataclass(slots=True)
class Disk:
    """Everything that was done below `root`, in order."""

    root: Path
    deeds: list[Deed] = field(default_factory=list)
    descriptors: dict[int, int | Path] = field(default_factory=dict)
    alone: Any = field(default_factory=threading.RLock)
    _files: dict[Path, int] = field(default_factory=dict)
    _given: int = 0

    def __post_init__(self) -> None:
        """Record the files that exist already as forced to the disk."""
        for path in sorted(self.root.rglob("*")):
            name = path.relative_to(self.root)
            if path.is_file():
                self._given += 1
                self._files[name] = self._given
                self.did(Wrote(file=self._given, at=0, content=path.read_bytes()))
                self.did(Forced(what=self._given))
            self.did(Named(name=name, file=self._files.get(name)))
            self.did(Forced(what=name.parent))

    def did(self, deed: Deed) -> None:
        with self.alone:
            self.deeds.append(deed)

    def say(self, what: Any) -> None:
        self.did(Said(what=what))

    @contextmanager
    def recording(self) -> Iterator[Disk]:
        with pytest.MonkeyPatch.context() as patch:
            for name in ("open", "fdopen", "close", "pwrite", "posix_fallocate", "ftruncate", "mkdir", "rmdir"):
                patch.setattr(os, name, getattr(self, f"_{name}")(getattr(os, name)))
            for name in ("fsync", "fdatasync"):
                patch.setattr(os, name, self._force(getattr(os, name)))
            for name in ("rename", "replace"):
                patch.setattr(os, name, self._rename(getattr(os, name)))
            for name in ("unlink", "remove"):
                patch.setattr(os, name, self._unlink(getattr(os, name)))
            patch.setattr(os, "link", self._link(os.link))
            yield self

    def _below(self, path: Any) -> Path | None:
        whole = Path(os.path.abspath(os.fspath(path))) if isinstance(path, str | os.PathLike) else None
        return whole.relative_to(self.root) if whole is not None and whole.is_relative_to(self.root) else None

    # ------------------------------------------------------------------------------------- in the place of os

    def _open(self, real: Any) -> Any:
        def opened(path: Any, flags: int, *more: Any, **options: Any) -> int:
            name = self._below(path)
            with self.alone:
                there = name is None or os.path.lexists(path)
                descriptor = real(path, flags, *more, **options)
                if name is not None:
                    self._opened(descriptor, name, path, there=there)
            return int(descriptor)

        return opened

    def _opened(self, descriptor: int, name: Path, path: Any, *, there: bool) -> None:
        if os.path.isdir(path):
            self.descriptors[descriptor] = name
            return
        if not there:
            self._given += 1
            self._files[name] = self._given
            self.did(Named(name=name, file=self._given))
        self.descriptors[descriptor] = self._files[name]

    def _close(self, real: Any) -> Any:
        def closed(descriptor: int) -> None:
            with self.alone:
                self.descriptors.pop(descriptor, None)
                real(descriptor)

        return closed

    def _fdopen(self, real: Any) -> Any:
        def opened(descriptor: int, mode: str = "r", *more: Any, **options: Any) -> Any:
            if descriptor in self.descriptors and mode == "wb":
                return io.BufferedWriter(_Raw(self, descriptor))
            return real(descriptor, mode, *more, **options)

        return opened

    def _pwrite(self, real: Any) -> Any:
        def written(descriptor: int, content: Any, at: int) -> int:
            with self.alone:
                done = int(real(descriptor, content, at))
                if descriptor in self.descriptors:
                    whole = bytes(memoryview(content)[:done])
                    self.did(Wrote(file=self.descriptors[descriptor], at=at, content=whole))
            return done

        return written

    def _posix_fallocate(self, real: Any) -> Any:
        def extended(descriptor: int, at: int, size: int) -> None:
            with self.alone:
                real(descriptor, at, size)
                if descriptor in self.descriptors:
                    self.did(Sized(file=self.descriptors[descriptor], size=at + size))

        return extended

    def _ftruncate(self, real: Any) -> Any:
        def cut(descriptor: int, size: int) -> None:
            with self.alone:
                real(descriptor, size)
                if descriptor in self.descriptors:
                    self.did(Sized(file=self.descriptors[descriptor], size=size))

        return cut

    def _force(self, real: Any) -> Any:
        def forced(descriptor: int) -> None:
            with self.alone:
                if descriptor not in self.descriptors:
                    real(descriptor)
                    return
                self.did(Forced(what=self.descriptors[descriptor]))

        return forced

    def _rename(self, real: Any) -> Any:
        def renamed(path: Any, target: Any, **options: Any) -> None:
            name, to = self._below(path), self._below(target)
            with self.alone:
                real(path, target, **options)
                if name is not None and to is not None:
                    file = self._files[to] = self._files.pop(name)
                    self.did(Named(name=to, file=file, was=name))

        return renamed

    def _link(self, real: Any) -> Any:
        def linked(path: Any, target: Any, **options: Any) -> None:
            name, to = self._below(path), self._below(target)
            with self.alone:
                real(path, target, **options)
                if name is not None and to is not None:
                    self._files[to] = self._files[name]
                    self.did(Named(name=to, file=self._files[name]))

        return linked

    def _unlink(self, real: Any) -> Any:
        def unlinked(path: Any, **options: Any) -> None:
            name = self._below(path)
            with self.alone:
                real(path, **options)
                if name is not None:
                    self._files.pop(name, None)
                    self.did(Unnamed(name=name))

        return unlinked

    def _mkdir(self, real: Any) -> Any:
        def made(path: Any, *more: Any, **options: Any) -> None:
            name = self._below(path)
            with self.alone:
                real(path, *more, **options)
                if name is not None:
                    self.did(Named(name=name, file=None))

        return made

    def _rmdir(self, real: Any) -> Any:
        def gone(path: Any, **options: Any) -> None:
            name = self._below(path)
            with self.alone:
                real(path, **options)
                if name is not None:
                    self.did(Unnamed(name=name))

        return gone


# ------------------------------------------------------------------------------------------- after the cut


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """A power cut after so many deeds, with the chance that something not forced is there (`kept`) and the seed of its
    draws. `lies`: of these the disk only says that they are forced; `pages` are the files of that name."""

    after: int
    kept: float = 0.0
    seed: int = 0
    lies: Collection[Lie] = ()


def after_cut(disk: Disk, cut: Cut, into: Path) -> Path:
    """A folder like the root of `disk` as it is found when the power is back."""
    deeds = disk.deeds[: cut.after]
    chance = random.Random(cut.seed)
    pages = {deed.file for deed in deeds if isinstance(deed, Named) and deed.name.suffix == ".pages"}
    forced = {
        deed.what: number
        for number, deed in enumerate(deeds)
        if isinstance(deed, Forced)
        and ("files" if isinstance(deed.what, int) else "folders") not in cut.lies
        and not (deed.what in pages and "pages" in cut.lies)
    }
    contents: dict[int, bytearray] = {}
    names: dict[Path, int | None] = {}
    for number, deed in enumerate(deeds):
        match deed:
            case Wrote():
                _write(contents.setdefault(deed.file, bytearray()), deed, _part(deed, number, forced, chance, cut.kept))
            case Sized():
                if number < forced.get(deed.file, -1) or chance.random() < cut.kept:
                    content = contents.setdefault(deed.file, bytearray())
                    content[:] = content[: deed.size].ljust(deed.size, b"\0")
            case Named() | Unnamed():
                if number < forced.get(deed.name.parent, -1) or chance.random() < cut.kept:
                    _name(names, deed)
    return _lay_out(names, contents, into, chance)


def _part(deed: Wrote, number: int, forced: dict[int | Path, int], chance: random.Random, kept: float) -> list[bool]:
    """Return, for each sector that a write touches, whether it has reached the disk, and at last whether the file is as
    long."""
    first, last = deed.at // SECTOR, -(-(deed.at + len(deed.content)) // SECTOR)
    if number < forced.get(deed.file, -1):
        return [True] * (last - first + 1)
    return [chance.random() < kept for _ in range(last - first + 1)]


def _write(content: bytearray, deed: Wrote, part: list[bool]) -> None:
    end = deed.at + len(deed.content)
    for number, there in enumerate(part[:-1]):
        start = max(deed.at, (deed.at // SECTOR + number) * SECTOR)
        stop = min(end, (deed.at // SECTOR + number + 1) * SECTOR)
        if there:
            content.extend(bytes(max(0, start - len(content))))
            content[start:stop] = deed.content[start - deed.at : stop - deed.at]
    if part[-1]:
        content.extend(bytes(max(0, end - len(content))))


def _name(names: dict[Path, int | None], deed: Named | Unnamed) -> None:
    if isinstance(deed, Named):
        if deed.was is not None:
            names.pop(deed.was, None)
        names[deed.name] = deed.file
    elif not any(other.parent == deed.name for other in names):
        names.pop(deed.name, None)


def _lay_out(names: dict[Path, int | None], contents: dict[int, bytearray], into: Path, chance: random.Random) -> Path:
    """Write the files in random order, since their times mean nothing after a cut."""
    into.mkdir(parents=True)
    for folder in sorted(name for name, file in names.items() if file is None):
        if (into / folder).parent.is_dir():
            (into / folder).mkdir()
    files = sorted((name, file) for name, file in names.items() if file is not None)
    chance.shuffle(files)
    for name, file in files:
        if (into / name).parent.is_dir():
            (into / name).write_bytes(contents.get(file, b""))
    return into
