"""The objects at an address of a store that speaks S3: each is written atomically. Credentials come from the engine's
environment, as in the store's own tools; none is ever part of an address. Knows no format."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path, PurePosixPath
from typing import Any, Final, Protocol

import msgspec
from msgspec.structs import replace

from djinn_jupyter.errors import MissingDependency, StorageFailed, UsageError
from djinn_jupyter.remote.engine.lease import Claimant

SCHEME: Final = "s3://"
_PATIENCE: Final = {"connect_timeout": 10, "read_timeout": 60, "retries": {"max_attempts": 3}}


def _file_system(noun: str) -> Any:
    """Return fsspec's class of S3. MissingDependency without its packages, for such a thing."""
    if find_spec("s3fs") is None:
        raise MissingDependency(f"A {noun} needs s3fs: pip install 'djinn-jupyter[store]'.")
    import fsspec

    return fsspec.get_filesystem_class("s3")


def _why(error: Exception) -> str:
    """Return the first line of an error: those of a store's library have no common class."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")


class Objects:
    """May be used from any thread. Methods raise StorageFailed where the store fails."""

    def __init__(self, address: str, files: Any) -> None:
        self.address, self._files = address.rstrip("/"), files
        self._root = self.address.partition("://")[2]

    @classmethod
    def at(cls, address: str) -> Objects:
        """Return the objects at an address. MissingDependency without the packages for S3."""
        kind = _file_system("store of checkpoints")
        return cls(address, kind(config_kwargs=_PATIENCE, use_listings_cache=False))

    def require_compare_and_put(self) -> None:
        """Raise UsageError where the store lets two objects have one name: when two engines save one checkpoint each,
        one would be lost silently."""
        name = f".{secrets.token_hex(8)}.probe"
        with self._said("could not be written to"):
            self._files.pipe_file(self._path(name), b"first", mode="create")
            try:
                self._files.pipe_file(self._path(name), b"second", mode="create")
            except FileExistsError:
                return
            finally:
                self._files.rm_file(self._path(name))
        raise UsageError(
            f"The store of {self.address} does not refuse a second object of one name (If-None-Match), so one of two "
            "engines that save a checkpoint could lose it: give another store, or a folder."
        )

    def put(self, file: Path, name: str, *, replace: bool) -> None:
        """Make an object of a file. FileExistsError where one has that name, unless `replace`."""
        with self._said("could not be written to"):
            self._files.put_file(str(file), self._path(name), mode="overwrite" if replace else "create")

    def get(self, name: str, file: Path) -> None:
        """Write an object to a file. FileNotFoundError for an unknown name."""
        with self._said("could not be read"):
            self._files.get_file(self._path(name), str(file))

    def head(self, name: str, nbytes: int) -> bytes:
        """Return the first bytes of an object. FileNotFoundError likewise."""
        with self._said("could not be read"):
            found: bytes = self._files.cat_file(self._path(name), start=0, end=nbytes)
            return found

    def sizes(self) -> dict[str, int]:
        """Return the existing names, with the bytes of each."""
        with self._said("could not be read"), suppress(FileNotFoundError):
            found = self._files.ls(self._root, detail=True)
            return {PurePosixPath(one["name"]).name: int(one["size"]) for one in found if one["type"] == "file"}
        return {}

    def delete(self, name: str) -> None:
        with self._said("could not be written to"), suppress(FileNotFoundError):
            self._files.rm_file(self._path(name))

    def _path(self, name: str) -> str:
        return f"{self._root}/{name}"

    @contextmanager
    def _said(self, what: str) -> Iterator[None]:
        try:
            yield
        except (FileExistsError, FileNotFoundError):
            raise
        except Exception as error:
            raise StorageFailed(f"{self.address} {what}: {_why(error)}.") from error


# The store of objects that a journal needs: each is written atomically, a read sees the last write, and one is replaced
# on the condition that it has not changed since it was read (an atomic compare-and-put).


class Changed(Exception):
    """The object has changed since it was read, or one exists already."""


class JournalStore(Protocol):
    """Methods raise OSError where the store fails; the outcome is then unknown. May be used from any thread."""

    address: str

    def read(self, name: str, /) -> tuple[bytes, str]:
        """Return an object, and the tag of this content. FileNotFoundError where there is none."""

    def compare_and_put(self, name: str, content: bytes, tag: str | None, /) -> str:
        """Replace the object with that tag (None: create one), and return its new tag. Raises Changed."""

    def put(self, name: str, content: bytes, /) -> None: ...

    def delete(self, names: Sequence[str], /) -> None:
        """Delete those of the objects that exist."""

    def names(self) -> list[str]:
        """Return the names of all objects; the list may be older than the last writes."""


def require_compare_and_put(store: JournalStore) -> None:
    """Raise UsageError where the store ignores the condition of a put: two engines could have one journal."""
    name = f".{secrets.token_hex(8)}.probe"
    try:
        first = store.compare_and_put(name, b"first", None)
        second = store.compare_and_put(name, b"second", first)
        heeded = (
            _refuses(store, name, None) and _refuses(store, name, first) and store.read(name) == (b"second", second)
        )
    finally:
        store.delete([name])
    if not heeded:
        raise UsageError(
            f"The store of {store.address} has no atomic compare-and-put (If-None-Match and If-Match of a PUT), so two "
            "engines could write one journal: give another store, or a folder that all machines mount."
        )


def _refuses(store: JournalStore, name: str, tag: str | None) -> bool:
    try:
        store.compare_and_put(name, b"third", tag)
    except Changed:
        return True
    return False


# A journal's objects in a store that speaks S3. fsspec has no conditional put, so s3fs is asked for S3's. Credentials
# come from the engine's environment, as in `objects`.

_PATIENCE_OF_PUTS: Final = {"connect_timeout": 3, "read_timeout": 10, "retries": {"total_max_attempts": 1}}
_ATTEMPTS: Final = 2
_CHANGED: Final = ("PreconditionFailed", "ConditionalRequestConflict", "412", "409")


class S3Store:
    """The objects at an address, `s3://BUCKET/PATH`. A reply waits for a put, so none is tried for long."""

    def __init__(self, address: str) -> None:
        self.address = address
        self._bucket, _, path = address.partition("://")[2].partition("/")
        self._prefix = f"{path}/" if path else ""
        files = type("JournalObjects", (_file_system("journal in a store"),), {"retries": _ATTEMPTS})
        self._files: Any = files(config_kwargs=_PATIENCE_OF_PUTS, use_listings_cache=False, skip_instance_cache=True)

    def read(self, name: str) -> tuple[bytes, str]:
        from fsspec.asyn import sync

        with self._said("read"):
            found: tuple[bytes, str] = sync(self._files.loop, self._read, name)
            return found

    async def _read(self, name: str) -> tuple[bytes, str]:
        found = await self._files._call_s3("get_object", Bucket=self._bucket, Key=self._prefix + name)
        return await found["Body"].read(), found["ETag"]

    def compare_and_put(self, name: str, content: bytes, tag: str | None) -> str:
        condition = {"IfNoneMatch": "*"} if tag is None else {"IfMatch": tag}
        return self._put(name, content, condition)

    def put(self, name: str, content: bytes) -> None:
        self._put(name, content, {})

    def _put(self, name: str, content: bytes, condition: dict[str, str]) -> str:
        with self._said("written to"):
            made = self._files.call_s3(
                "put_object", Bucket=self._bucket, Key=self._prefix + name, Body=content, **condition
            )
            return str(made["ETag"])

    def delete(self, names: Sequence[str]) -> None:
        with self._said("written to"):
            for start in range(0, len(names), 1000):  # the most that S3 takes at once
                keys = [{"Key": self._prefix + name} for name in names[start : start + 1000]]
                self._files.call_s3("delete_objects", Bucket=self._bucket, Delete={"Objects": keys, "Quiet": True})

    def names(self) -> list[str]:
        root = f"{self._bucket}/{self._prefix}"
        with self._said("read"):
            return [path.removeprefix(root) for path in self._files.find(root)]

    @contextmanager
    def _said(self, what: str) -> Iterator[None]:
        """Raise errors of the store's library as Changed or as OSError, with a message of one line."""
        try:
            yield
        except FileNotFoundError:
            raise
        except Exception as error:
            if _code(error) in _CHANGED:
                raise Changed from None
            raise OSError(f"{self.address} could not be {what} ({_why(error)})") from error


def _code(error: Exception) -> str | None:
    """Return S3's own code for an error, which s3fs translates into one of Python's."""
    response = getattr(error.__cause__, "response", None) or {}
    found: str | None = response.get("Error", {}).get("Code")
    return found


def require_journal_store(address: str) -> None:
    """Raise UsageError, StorageFailed or MissingDependency where no journal can be kept at an address of a store."""
    try:
        require_compare_and_put(S3Store(address))
    except FileNotFoundError as error:
        raise UsageError(f"There is no place for a journal at {address} ({error}): make its bucket.") from None
    except OSError as error:
        raise StorageFailed(f"{error}.") from error


# The head of a journal in a store: one small object that says whose the journal is and which objects it consists of.
# It is replaced by compare-and-put alone, so an engine that was taken over changes nothing any more. An object that the
# head does not name is not part of the journal.
#
#     ROOT/head                       the head
#     ROOT/7/STEM.0.session/0-4096    bytes of a journal file, put by the engine of epoch 7
#     ROOT/aside/STEM.0.session       an unusable file; nothing there is ever deleted

NAME: Final = "head"
FORMAT: Final = 1
_TRIES: Final = 16  # each failure is another engine's success, or an earlier one of this engine


class StoredPart(msgspec.Struct, frozen=True, array_like=True):
    """An object with bytes of a journal file, after those of the part before."""

    object: str
    nbytes: int


class OpenClaim(msgspec.Struct, frozen=True, kw_only=True):
    epoch: int
    claimant: Claimant


class JournalHead(msgspec.Struct, frozen=True, kw_only=True):
    """`claims` are those whose engines may still answer; `claimant` is the engine of the present epoch, also after its
    end; `files` are in the order of their last writes."""

    format: int = FORMAT
    epoch: int = 0
    claimant: Claimant | None = None
    serial: int = 0
    claims: tuple[OpenClaim, ...] = ()
    files: dict[str, tuple[StoredPart, ...]] = {}

    def objects(self) -> set[str]:
        return {part.object for parts in self.files.values() for part in parts}


class HeadObject:
    """Invariant: a change is applied to the store's present content, and what `change` returned is there and stays
    there.

    A put without an answer may arrive later, while the head is unchanged: so the next change is put even where it
    changes nothing."""

    def __init__(self, store: JournalStore) -> None:
        self._store = store
        self._known: tuple[JournalHead, str | None] | None = None  # None where the store may have another
        self._unanswered = False
        self._lock = threading.Lock()

    def read(self) -> JournalHead:
        """Return the present head. Raises OSError."""
        return self._read()[0]

    def change(self, change: Callable[[JournalHead], JournalHead]) -> JournalHead:
        """Put the result of `change` on the present head, in one step. An error of `change` ends this with nothing
        changed. Raises OSError, after which either head may be there."""
        with self._lock:
            for _ in range(_TRIES):
                head, tag = self._known or self._read()
                changed = change(head)
                if changed is head and not self._unanswered:
                    self._known = head, tag
                    return head
                try:
                    return self._put(msgspec.structs.replace(changed, serial=head.serial + 1), tag)
                except Changed:
                    continue
        raise OSError(f"the head of the journal in {self._store.address} changes all the time")

    def _put(self, head: JournalHead, tag: str | None) -> JournalHead:
        self._known, self._unanswered = None, True
        tag = self._store.compare_and_put(NAME, msgspec.json.encode(head), tag)
        self._known, self._unanswered = (head, tag), False
        return head

    def _read(self) -> tuple[JournalHead, str | None]:
        try:
            content, tag = self._store.read(NAME)
        except FileNotFoundError:
            return JournalHead(), None
        try:
            head = msgspec.json.decode(content, type=JournalHead)
        except ValueError as error:  # msgspec's errors are ValueErrors
            raise OSError(f"{self._store.address}/{NAME} is no head of a journal ({error})") from None
        if head.format != FORMAT:
            raise OSError(f"the journal in {self._store.address} is of another version of Djinn")
        return head, tag


class HeadClaims:
    """From a claim on, earlier engines change the head no more, except to end their claims."""

    def __init__(self, head: HeadObject, where: str) -> None:
        self._head, self.where = head, where

    def claim(self, me: Claimant) -> int:
        def claimed(head: JournalHead) -> JournalHead:
            epoch = head.epoch + 1
            return replace(head, epoch=epoch, claimant=me, claims=(*head.claims, OpenClaim(epoch=epoch, claimant=me)))

        return self._head.change(claimed).epoch

    def later(self, epoch: int) -> Claimant | None:
        head = self._head.read()
        if head.epoch < epoch:
            raise OSError(f"the head of the journal in {self.where} is not there any more")
        return head.claimant if head.epoch > epoch else None

    def earlier(self, epoch: int) -> dict[int, bool]:
        return {one.epoch: one.claimant.is_gone for one in self._head.read().claims if one.epoch < epoch}

    def end(self, epoch: int) -> None:
        self._head.change(lambda head: _only(head, [one for one in head.claims if one.epoch != epoch]))

    def forget_earlier(self, epoch: int) -> None:
        self._head.change(lambda head: _only(head, [one for one in head.claims if one.epoch >= epoch]))


def _only(head: JournalHead, claims: list[OpenClaim]) -> JournalHead:
    return head if len(claims) == len(head.claims) else replace(head, claims=tuple(claims))
