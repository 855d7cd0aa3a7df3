"""Engines on other machines: their address, and the entry by which this process knows one."""

from __future__ import annotations

import logging
import os
import re
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec
from jupyter_core.paths import jupyter_data_dir

from djinn_jupyter._version import __version__
from djinn_jupyter.errors import UsageError
from djinn_jupyter.link.naming import user_name
from djinn_jupyter.link.registry import Registry, registry_folder
from djinn_jupyter.settings import Identity, Options, short_name
from djinn_jupyter.wire import protocol
from djinn_jupyter.wire.keys import FOLDER, KeyFolder, KeyPair
from djinn_jupyter.wire.nouns import ModelDescription
from djinn_jupyter.wire.own import boot_id, host_name, open_own, process_mark
from djinn_jupyter.wire.registry import Entry, encode_entry

PORT: Final = 5556
TOLD: Final = ("revision", "dtype", "device", "attention")  # options in the request for a remote engine
_ADDRESS: Final = re.compile(r"(?:tcp://)?(\[[0-9A-Fa-f:.%]+\]|[A-Za-z0-9._-]+)(?::(\d{1,5}))?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """The place of an engine. The host is a name, or an IP address, with brackets for version 6."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


def read_address(text: str) -> Address:
    """Return the address that `gpu-box`, `gpu-box:5556` or `tcp://gpu-box:5556` spells. UsageError for another text."""
    found = _ADDRESS.fullmatch(text)
    if found is None or not 0 < int(found[2] or PORT) < 2**16:
        raise UsageError(f"{text!r} is no address of an engine; write gpu-box, or tcp://gpu-box:{PORT}.")
    return Address(host=found[1], port=int(found[2] or PORT))


def entry_at(address: Address, key: str | None) -> Entry:
    """Return the entry of the engine at an address; nothing else is known of it yet. It names this process, which uses
    it, and ends with it."""
    unknown = Identity(model=str(address))
    return Entry(
        version=__version__,
        protocol=protocol.digest(),
        **_this_process(),
        started=time.time(),
        identity=unknown,
        found=unknown,
        options=Options(),
        commands=f"tcp://{address}",
        key=key,
    )


def used_by_this_process(entry: Entry) -> Entry:
    """Return an entry that an engine of another machine wrote there, changed to name this process."""
    return msgspec.structs.replace(entry, **_this_process())


def _this_process() -> dict[str, Any]:
    mark = process_mark(os.getpid())
    assert mark is not None  # this process runs
    return {"pid": os.getpid(), "mark": mark, "host": host_name(), "boot": boot_id()}


def as_told(entry: Entry, model: ModelDescription) -> Entry:
    """Return the entry of a remote engine with the model that it reports; another entry unchanged."""
    if not entry.is_afar:
        return entry
    found = Identity(
        model=model.name, revision=model.revision, dtype=model.dtype, device=model.device, attention=model.attention
    )
    return msgspec.structs.replace(entry, identity=found, found=found)


def require_model(entry: Entry, wanted: Identity) -> None:
    """Raise UsageError where the remote engine serves another model than the requested one."""
    found = entry.found
    named = wanted.model in (found.model, short_name(found.model))
    if not named or any(getattr(wanted, one) not in (None, getattr(found, one)) for one in TOLD):
        raise UsageError(f"{entry.named} serves {found}, not {wanted}.")


# The engines of other machines that processes of this user are attached to, each with a file beside the registry's
# entries. The sidebar finds them there; no key is written.

log = logging.getLogger(__name__)

SUFFIX: Final = ".afar.json"


def note_attached(entry: Entry) -> Callable[[], None]:
    """Record that this process is attached to a remote engine; return the function that removes the record. A local
    engine has its own entry, and gets none. A failure is logged: the sidebar then lacks the engine."""
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
    """Write the record atomically."""
    path = registry_folder() / f"{entry.id}-{entry.pid}{SUFFIX}"
    aside = path.with_suffix(".new")
    with os.fdopen(open_own(aside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), "wb") as file:
        file.write(encode_entry(entry))
    aside.replace(path)
    return path


class Attachments:
    """The records of live processes on this machine."""

    def __init__(self) -> None:
        self._registry = Registry(SUFFIX)

    def look(self) -> dict[str, Entry]:
        """Return the engines by name. Records of ended processes are removed."""
        return {entry.id: entry for entry in self._registry.look() if entry.host == host_name()}


def key_folder() -> KeyFolder:
    """Return the folder of keys in this user's data of Jupyter."""
    return KeyFolder(Path(jupyter_data_dir()) / FOLDER)


def draw_own(name: str | None) -> tuple[str, KeyPair]:
    """Draw an own pair, named after this user by default. Return both. UsageError where one has that name."""
    chosen = name or user_name()
    return chosen, key_folder().draw_own(chosen, draw)


def of_engines_here() -> KeyPair:
    """Return the pair of this user's engines on this machine."""
    return key_folder().server(host_name(), draw)


def draw() -> tuple[bytes, bytes]:
    """Draw a CURVE pair: public and secret, 32 bytes each."""
    import zmq  # imported late: the process of `djinn serve` stays small
    from zmq.utils import z85

    public, secret = zmq.curve_keypair()
    return z85.decode(public), z85.decode(secret)
