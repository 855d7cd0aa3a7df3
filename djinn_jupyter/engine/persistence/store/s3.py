"""A journal's objects in a store that speaks S3. fsspec has no call for a put with a condition, so s3fs is asked for
the one of S3. Credentials are those of the engine's environment, as in `objects`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any, Final

from djinn_jupyter.engine.persistence.store.journal_store import Changed, require_compare_and_put
from djinn_jupyter.errors import MissingDependency, StorageFailed, UsageError

_PATIENCE: Final = {"connect_timeout": 3, "read_timeout": 10, "retries": {"total_max_attempts": 1}}
_ATTEMPTS: Final = 2
_CHANGED: Final = ("PreconditionFailed", "ConditionalRequestConflict", "412", "409")


class S3Store:
    """The objects below an address, `s3://BUCKET/PATH`. A reply waits for a put, so none is tried for long."""

    def __init__(self, address: str) -> None:
        if find_spec("s3fs") is None:
            raise MissingDependency("A journal in a store needs s3fs: pip install 'djinn-jupyter[store]'.")
        import fsspec

        self.address = address
        self._bucket, _, path = address.partition("://")[2].partition("/")
        self._prefix = f"{path}/" if path else ""
        files = type("JournalObjects", (fsspec.get_filesystem_class("s3"),), {"retries": _ATTEMPTS})
        self._files: Any = files(config_kwargs=_PATIENCE, use_listings_cache=False, skip_instance_cache=True)

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
            for start in range(0, len(names), 1000):  # as many as S3 takes at once
                keys = [{"Key": self._prefix + name} for name in names[start : start + 1000]]
                self._files.call_s3("delete_objects", Bucket=self._bucket, Delete={"Objects": keys, "Quiet": True})

    def names(self) -> list[str]:
        root = f"{self._bucket}/{self._prefix}"
        with self._said("read"):
            return [path.removeprefix(root) for path in self._files.find(root)]

    @contextmanager
    def _said(self, what: str) -> Iterator[None]:
        """Raise what the store's library raises as Changed or as OSError, whose message is one line."""
        try:
            yield
        except FileNotFoundError:
            raise
        except Exception as error:  # the errors of a store's library have no class in common
            if _code(error) in _CHANGED:
                raise Changed from None
            why = (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")
            raise OSError(f"{self.address} could not be {what} ({why})") from error


def _code(error: Exception) -> str | None:
    """Return S3's own word for an error, which s3fs translates into one of Python's."""
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
