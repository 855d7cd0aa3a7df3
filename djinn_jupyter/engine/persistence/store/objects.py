"""The objects below an address of a store that speaks S3: each appears whole or not at all. Credentials are those of
the engine's environment, as the store's own tools read them; none is ever part of an address. Knows no format."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path, PurePosixPath
from typing import Any, Final

from djinn_jupyter.errors import MissingDependency, StorageFailed, UsageError

SCHEME: Final = "s3://"
_PATIENCE: Final = {"connect_timeout": 10, "read_timeout": 60, "retries": {"max_attempts": 3}}


class Objects:
    """May be used from any thread. Methods raise StorageFailed where the store does not do what it is asked."""

    def __init__(self, address: str, files: Any) -> None:
        self.address, self._files = address.rstrip("/"), files
        self._root = self.address.partition("://")[2]

    @classmethod
    def at(cls, address: str) -> Objects:
        """Return those below an address. MissingDependency without the parts that speak S3."""
        if find_spec("s3fs") is None:
            raise MissingDependency("A store of checkpoints needs s3fs: pip install 'djinn-jupyter[store]'.")
        import fsspec

        return cls(address, fsspec.filesystem("s3", config_kwargs=_PATIENCE, use_listings_cache=False))

    def require_compare_and_put(self) -> None:
        """Raise UsageError where the store lets two have one name: of two engines that save one checkpoint each, one
        would be lost without a word."""
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
        """Make an object of a file. FileExistsError where there is one of that name, unless `replace`."""
        with self._said("could not be written to"):
            self._files.put_file(str(file), self._path(name), mode="overwrite" if replace else "create")

    def get(self, name: str, file: Path) -> None:
        """Write an object to a file. FileNotFoundError where there is none of that name."""
        with self._said("could not be read"):
            self._files.get_file(self._path(name), str(file))

    def head(self, name: str, nbytes: int) -> bytes:
        """Return the first bytes of an object. FileNotFoundError likewise."""
        with self._said("could not be read"):
            found: bytes = self._files.cat_file(self._path(name), start=0, end=nbytes)
            return found

    def sizes(self) -> dict[str, int]:
        """Return the names that there are, with the bytes of each."""
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
        except Exception as error:  # the errors of a store's library have no class in common
            why = (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")
            raise StorageFailed(f"{self.address} {what}: {why}.") from error
