"""The engines of other machines that processes of this user are attached to, each noted by a file beside the registry's
entries. The sidebar finds them by it; no key is written there."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

from djinn_jupyter.client.engines.registry import Registry, registry_folder
from djinn_jupyter.errors import UsageError
from djinn_jupyter.wire.host import host_name
from djinn_jupyter.wire.own import open_own
from djinn_jupyter.wire.registry import Entry, encode_entry

log = logging.getLogger(__name__)

SUFFIX: Final = ".afar.json"


def note_attached(entry: Entry) -> Callable[[], None]:
    """Note that this process is attached to an engine; return the function that takes the note away. An engine of this
    machine has an entry of its own, and gets none. Where none can be written that is logged: the sidebar lacks one."""
    if not entry.is_afar:
        return lambda: None
    try:
        path = _write(entry)
    except (OSError, UsageError) as error:
        log.warning("The sidebar will not show %s: %s", entry.place, error)
        return lambda: None

    def forget() -> None:
        with suppress(OSError):
            path.unlink()

    return forget


def _write(entry: Entry) -> Path:
    """Write the note, which appears whole."""
    path = registry_folder() / f"{entry.id}-{entry.pid}{SUFFIX}"
    aside = path.with_suffix(".new")
    with os.fdopen(open_own(aside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), "wb") as file:
        file.write(encode_entry(entry))
    aside.replace(path)
    return path


class Attachments:
    """The notes of the processes of this machine that live."""

    def __init__(self) -> None:
        self._registry = Registry(SUFFIX)

    def look(self) -> dict[str, Entry]:
        """Return the engines by name. Notes of processes that have gone are removed."""
        return {entry.id: entry for entry in self._registry.look() if entry.host == host_name()}
