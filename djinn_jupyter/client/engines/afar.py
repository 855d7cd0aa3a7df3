"""Engines on other machines: their address, and the entry by which this process knows one."""

from __future__ import annotations

import os
import re
import time
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from djinn_jupyter._version import __version__
from djinn_jupyter.errors import UsageError
from djinn_jupyter.options import Identity, Options, short_name
from djinn_jupyter.wire import protocol
from djinn_jupyter.wire.host import boot_id, host_name, process_mark
from djinn_jupyter.wire.nouns import ModelDescription
from djinn_jupyter.wire.registry import Entry

PORT: Final = 5556
TOLD: Final = ("revision", "dtype", "device", "attention")  # options by which an engine afar is asked for
_ADDRESS: Final = re.compile(r"(?:tcp://)?(\[[0-9A-Fa-f:.%]+\]|[A-Za-z0-9._-]+)(?::(\d{1,5}))?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """The place of an engine. The host is a name, or an IP address, of which one of version 6 is in brackets."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


def read_address(text: str) -> Address:
    """Return the address that `gpu-box`, `gpu-box:5556` or `tcp://gpu-box:5556` spells. UsageError for what is none."""
    found = _ADDRESS.fullmatch(text)
    if found is None or not 0 < int(found[2] or PORT) < 2**16:
        raise UsageError(f"{text!r} is no address of an engine; write gpu-box, or tcp://gpu-box:{PORT}.")
    return Address(host=found[1], port=int(found[2] or PORT))


def entry_at(address: Address, key: str | None) -> Entry:
    """Return the entry of the engine at an address, of which nothing else is known yet. It names this process, which
    uses it, and ends with it."""
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
    """Return the entry that an engine of another machine wrote there, as one that names this process."""
    return msgspec.structs.replace(entry, **_this_process())


def _this_process() -> dict[str, Any]:
    mark = process_mark(os.getpid())
    assert mark is not None  # this process runs
    return {"pid": os.getpid(), "mark": mark, "host": host_name(), "boot": boot_id()}


def as_told(entry: Entry, model: ModelDescription) -> Entry:
    """Return the entry of an engine afar with the model that it says it serves; another as it is."""
    if not entry.is_afar:
        return entry
    found = Identity(
        model=model.name,
        revision=model.revision,
        dtype=model.dtype,
        device=model.device,
        attention=model.attention,
    )
    return msgspec.structs.replace(entry, identity=found, found=found)


def require_model(entry: Entry, wanted: Identity) -> None:
    """Raise UsageError where the engine afar serves another model than the one that is wanted."""
    found = entry.found
    named = wanted.model in (found.model, short_name(found.model))
    if not named or any(getattr(wanted, one) not in (None, getattr(found, one)) for one in TOLD):
        raise UsageError(f"{entry.named} serves {found}, not {wanted}.")
