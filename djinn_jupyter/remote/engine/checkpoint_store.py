"""The checkpoints of an engine in a store of objects. Each goes through a file of this machine, which
`checkpoint_files` writes and reads, so that it has the bytes and the checks of a checkpoint in a folder.

Clients name checkpoints and never addresses: an address in a request would let a person use the engine's credentials.
"""

from __future__ import annotations

import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from shutil import rmtree
from typing import Final, TypeGuard

import msgspec
import torch

from djinn_jupyter.engine.store import checkpoint_files
from djinn_jupyter.engine.store.identity import ModelIdentity
from djinn_jupyter.engine.store.image import SessionImage
from djinn_jupyter.errors import StorageFailed, UnknownCheckpoint, UsageError
from djinn_jupyter.files import Abandoned, make_folder, told_of_disk
from djinn_jupyter.remote.engine.move_folder import WORDS, Moves, Word
from djinn_jupyter.remote.engine.objects import SCHEME, Changed, JournalStore, Objects, S3Store
from djinn_jupyter.wire.base import person_of
from djinn_jupyter.wire.nouns import CheckpointDescription
from djinn_jupyter.wire.sessions import Checkpoints

_PREFIX: Final = ".checkpoint-"


def is_store(address: str | None) -> TypeGuard[str]:
    return address is not None and address.startswith(SCHEME)


class CheckpointStore(checkpoint_files.CheckpointFolder):
    """`folder` is on this machine, for files in transit. Sizes are known from the engine's start or the last list, and
    from its own saves and drops since, so that no other request waits for the store."""

    def __init__(self, objects: Objects, folder: Path, identity: ModelIdentity, device: torch.device) -> None:
        super().__init__(folder, identity, device)
        self._objects = objects

    def count(self) -> None:
        """Measure the store's checkpoints. Raises StorageFailed."""
        self._sizes = {
            name: size for name, size in self._objects.sizes().items() if name.endswith(checkpoint_files.SUFFIX)
        }

    def sizes(self) -> dict[str, int]:
        return self._sizes

    def size_of(self, name: str) -> int:
        return self._sizes.get(self.file_of(name).name, 0)

    def load(self, name: str) -> tuple[SessionImage, str]:
        """Return a checkpoint by its name, or by the path of a file of this machine."""
        if "/" in name:
            return super().load(name)
        file = self.file_of(name.removesuffix(checkpoint_files.SUFFIX)).name
        with self._on_the_way() as folder:
            try:
                self._objects.get(file, folder.folder / file)
            except FileNotFoundError:
                raise self._unknown(name) from None
            return folder.read(folder.folder / file, self._where(file)), self._where(file)

    def save(
        self, name: str, image: SessionImage, entry: CheckpointDescription, *, replace: bool, abandoned: threading.Event
    ) -> tuple[CheckpointDescription, str]:
        """Write the file, and put it into the store when it is complete. Raises StorageFailed, leaving nothing behind;
        UsageError when the name was taken meanwhile, by another engine too."""
        with self._on_the_way() as folder:
            saved, path = folder.save(name, image, entry, replace=True, abandoned=abandoned)
            try:
                self._objects.put(Path(path), Path(path).name, replace=replace)
            except FileExistsError:
                raise checkpoint_files.name_taken(name) from None
            except FileNotFoundError as error:
                raise StorageFailed(f"{self._objects.address} could not be written to: {error}.") from error
        self._sizes = {**self._sizes, Path(path).name: saved.bytes_stored}
        return saved, self._where(Path(path).name)

    def list(self, person: str | None = None) -> Checkpoints:
        """Return a person's checkpoints (all for None), newest first, without other objects and those damaged at their
        beginning. Of many objects, the first MOST_LISTED by name are read."""
        self.count()
        named = sorted(name for name in self._sizes if person is None or person_of(name) == person)
        with self._on_the_way() as folder:
            read = named[: checkpoint_files.MOST_LISTED]
            found = [self._described(folder.folder / name, self._sizes[name]) for name in read]
        return checkpoint_files.listed(found, len(named) - len(read))

    def drop(self, name: str) -> None:
        file = self.file_of(name.removesuffix(checkpoint_files.SUFFIX)).name
        if file not in self._objects.sizes():
            raise self._unknown(name)
        self._objects.delete(file)
        self._sizes = {one: size for one, size in self._sizes.items() if one != file}

    def _unknown(self, name: str) -> UnknownCheckpoint:
        self.count()
        return checkpoint_files.unknown(name, (file.removesuffix(checkpoint_files.SUFFIX) for file in self._sizes))

    def _described(self, path: Path, size: int) -> CheckpointDescription | None:
        try:
            path.write_bytes(self._objects.head(path.name, checkpoint_files.HEAD_BYTES))
        except FileNotFoundError:  # just dropped
            return None
        entry = checkpoint_files.entry_of(path)
        return None if entry is None else msgspec.structs.replace(entry, bytes_stored=size)

    def _where(self, file: str) -> str:
        return f"{self._objects.address}/{file}"

    @contextmanager
    def _on_the_way(self) -> Iterator[checkpoint_files.CheckpointFolder]:
        """Yield a folder of this machine that is deleted at the end; folders of killed engines are deleted too."""
        with told_of_disk(f"{self.folder} could not be written to"):
            make_folder(self.folder)
            for left in self.folder.glob(f"{_PREFIX}*"):
                if time.time() - left.stat().st_mtime > checkpoint_files.ABANDONED_SECONDS:
                    rmtree(left, ignore_errors=True)
            made = tempfile.TemporaryDirectory(prefix=_PREFIX, dir=self.folder, ignore_cleanup_errors=True)
        with made as folder:
            yield checkpoint_files.CheckpointFolder(Path(folder), self.identity, self.device)


def require_store(address: str | None) -> None:
    """Raise UsageError, StorageFailed or MissingDependency where checkpoints cannot be kept at an address of a
    store."""
    if address is None or not is_store(address):
        return
    objects = Objects.at(address)
    try:
        objects.require_compare_and_put()
    except FileNotFoundError as error:
        raise UsageError(
            f"There is no place for checkpoints at {objects.address} ({error}): make its bucket."
        ) from None


# Sessions on their way between two engines that have a store in common: two objects each.
#
#     ID.djinn    the session, whole, written by the engine that it leaves
#     ID.state    the word of its record, replaced by compare-and-put alone


class MoveStore(Moves):
    """The store shared by the engines between which sessions move."""

    def __init__(self, words: JournalStore, files: CheckpointStore) -> None:
        super().__init__(words.address, files)
        self._words = words

    @classmethod
    def at(cls, address: str, folder: Path, identity: ModelIdentity, device: torch.device) -> MoveStore:
        """Return the store at an address. `folder` is on this machine, for files in transit."""
        return cls(S3Store(address), CheckpointStore(Objects.at(address), folder, identity, device))

    def _begin(
        self, move: str, image: SessionImage, described: CheckpointDescription, abandoned: threading.Event
    ) -> int:
        saved, _ = self._files.save(move, image, described, replace=True, abandoned=abandoned)
        try:
            if abandoned.is_set():
                raise Abandoned
            self._put(move, "waits", None)
        except Changed:
            raise UsageError("The move of this name is another engine's; draw another.") from None
        except BaseException:
            self._delete(move)
            raise
        return saved.bytes_stored

    def _look(self, move: str) -> tuple[Word, str] | None:
        try:
            content, tag = self._words.read(f"{move}.state")
        except FileNotFoundError:
            return None
        for word in WORDS:
            if content == word.encode():
                return word, tag
        raise OSError(f"{move}.state has none of the words {', '.join(WORDS)}")

    def _replace(self, move: str, word: Word, tag: str | None) -> None:
        self._words.compare_and_put(f"{move}.state", word.encode(), tag)

    def _remove(self, move: str, *, record: bool) -> None:
        self._words.delete([f"{move}{checkpoint_files.SUFFIX}", *([f"{move}.state"] if record else [])])
