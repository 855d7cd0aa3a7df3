"""Shards that an engine on another machine hands over: written here, whole or not at all, and found again.

The engine is told no path. The name of a file is this side's own, and what the engine sends is kept only where it is
the shard that was asked for.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import accumulate, chain
from pathlib import Path
from typing import Final

import msgspec

from djinn_jupyter.errors import StorageFailed, UsageError, WireError
from djinn_jupyter.fsync import force, force_names, make_folder
from djinn_jupyter.methods.datasets.api.shard_files import ShardFile
from djinn_jupyter.methods.datasets.request.collecting import Collect, Collected
from djinn_jupyter.shard_digests import WRITTEN
from djinn_jupyter.wire.arrays import Array
from djinn_jupyter.written_aside import PART, require_writable, written_aside

NOT_ASKED_FOR: Final = "The engine did not hand over the shard that was asked for; nothing of it is written."
STAYS: Final = "Shards that are whole stay, and collecting again goes on after them."


def handing_over(request: Collect, path: Path) -> Collect:
    """Return the request without a path, with the note of the shard that is at `path` already. Raises UsageError where
    that has other prompts, StorageFailed where it cannot be read or is not whole, or none can be written."""
    with _sentence(f"{path} could not be written"):
        require_writable(path)
    return msgspec.structs.replace(request, folder=None, there=_note_at(path, request))


def _note_at(path: Path, request: Collect) -> str | None:
    with _sentence(f"{path} could not be read"):
        if not path.exists():
            return None
        if not path.is_file():
            raise UsageError(f"{path} is no shard of a collection; choose another folder.")
        there = ShardFile.at(path)
    if not _has_prompts(there, request):
        raise UsageError(f"{path} has other prompts than these. Choose another folder, or delete that one.")
    return json.dumps({name: value for name, value in there.note.items() if name not in ("computed", WRITTEN)})


def keep(collected: Collected, path: Path, request: Collect) -> None:
    """Write the file of a shard, whole, forced and then renamed, unless it is there. Raises WireError where it is not
    the shard that was asked for, StorageFailed; either leaves nothing behind."""
    if collected.existed and request.there is not None:
        return
    if collected.content is None:
        raise WireError(NOT_ASKED_FOR)
    _write(collected.content, path, request)


def _write(content: Array, path: Path, request: Collect) -> None:
    with _sentence(f"{path} could not be written"):
        make_folder(path.parent)
        for left in path.parent.glob(f".{path.name}.*{PART}"):  # by a kernel that was killed
            left.unlink(missing_ok=True)
        with written_aside(path, prefix=f".{path.name}.") as (file, aside):
            file.write(content.data)
            file.flush()
            force(file.fileno())
            _require_asked(aside, request)
            aside.replace(path)
        force_names(path.parent)


def _require_asked(aside: Path, request: Collect) -> None:
    try:
        found = ShardFile.at(aside)
        same = _has_prompts(found, request)
        place = tuple(found.note.get(name) for name in ("shard", "first", "last"))
    except StorageFailed:
        same, place = False, ()
    if not same or place != (request.shard, request.first, request.last):
        raise WireError(NOT_ASKED_FOR)


def _has_prompts(shard: ShardFile, request: Collect) -> bool:
    tokens, starts = shard.tensor("tokens").tolist(), shard.tensor("starts").tolist()
    begins = [0, *accumulate(map(len, request.prompts))]
    return bool(tokens == list(chain.from_iterable(request.prompts)) and starts == begins)


@contextmanager
def _sentence(what: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StorageFailed(f"{what}: {error.strerror or error}. {STAYS}") from None
