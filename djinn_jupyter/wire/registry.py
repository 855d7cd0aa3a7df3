"""The entry by which clients find an engine process, and its messages to the launcher while it starts.

One JSON file per running engine, mode 0600, in the folder `djinn` of the Jupyter runtime directory. The two sides find
the folder, and live entries, by themselves; this module has only the format.
"""

from __future__ import annotations

import dataclasses
import hashlib
import math
from typing import Any, Final

import msgspec

from djinn_jupyter.errors import MalformedMessage
from djinn_jupyter.settings import Identity, Options

FOLDER: Final = "djinn"
ENTRY_SUFFIX: Final = ".engine.json"
LIFE_SUFFIX: Final = ".alive"  # beside an entry: a file that its engine holds locked while it lives
LOCK_SUFFIX: Final = ".lock"
SOCKET_FOLDER_PREFIX: Final = "djinn-"
CLAIM_LOST_STATUS: Final = 3  # the exit status of an engine whose sessions another one has taken over
DIGITS_AFAR: Final = 10  # of the digest of how an engine elsewhere is reached
_ENDLESS: Final = 1.5e308  # in an entry, for infinity: JSON would make it null, an option left open


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """A running engine. Unknown fields are ignored, so that an entry of another version can still name its version.

    `mark` is the process's mark and `boot` the id of the host's boot: together with `pid` they distinguish a live
    engine from another process with its number. `identity` is the requested model, `found` the loaded one. `protocol`
    is the digest of its messages (wire/protocol.py). `listens` is the network address, beside the private folder, on
    which it admits persons by their keys.

    The process that uses an engine on another machine makes its entry. `pid`, `mark`, `host` and `boot` then name that
    process, and `version` is its own until the engine has sent its version. `key` is the name or the file of the key
    that identifies it to the engine; no key is written here. An engine `in_cluster` may return at another address;
    `machines` are the names of the cluster's machines at the time of the request. `files` are the stamps of the model's
    files when it loaded them (files.py).
    """

    version: str
    pid: int
    mark: str
    host: str
    boot: str
    started: float
    identity: Identity
    found: Identity
    options: Options
    commands: str
    log: str | None = None
    protocol: str = ""
    metrics: str | None = None  # host:port of its page for Prometheus
    listens: str | None = None
    quota: str | None = None  # of each person with a key, as given
    key: str | None = None
    in_cluster: bool = False
    machines: tuple[str, ...] = ()
    files: dict[str, tuple[int, int, int] | None] = msgspec.field(default_factory=dict)

    @property
    def is_afar(self) -> bool:
        """True for an engine that is reached over TCP or through ssh, possibly on another machine."""
        return self.commands.startswith(("tcp://", "ssh://"))

    @property
    def has_keys(self) -> bool:
        """True for an engine that is reached over TCP, where both sides identify each other by keys."""
        return self.commands.startswith("tcp://")

    @property
    def place(self) -> str:
        """The place of an engine, as a user names it: `gpu-box:5556`, `ssh://anna@gpu-box`."""
        scheme, _, rest = self.commands.partition("://")
        return f"ssh://{rest.partition('/')[0]}" if scheme == "ssh" else rest

    @property
    def named(self) -> str:
        """The engine as messages name it."""
        if self.is_afar:
            return f"The engine at {self.place}"
        return f"The engine of {self.identity} (process {self.pid})"

    @property
    def id(self) -> str:
        """The engine's name in URLs and in views, different for each process; for an engine elsewhere the same for all
        processes that reach it in the same way."""
        if not self.is_afar:
            return self.file_stem()
        way = f"{self.commands}\n{self.key}".encode()
        return f"{self.identity.slug()}-{hashlib.sha256(way).hexdigest()[:DIGITS_AFAR]}"

    def file_stem(self) -> str:
        """Return the name of the engine's files in the registry, without suffix."""
        return f"{self.identity.slug()}-{self.pid}"

    def socket_folder(self) -> str | None:
        """Return the private folder of its sockets; None for an engine elsewhere."""
        return self.commands.removeprefix("ipc://").rpartition("/")[0] if self.commands.startswith("ipc://") else None

    def serves(self, wanted: Identity) -> bool:
        """True if a load of `wanted` means this engine: each field as requested then, or now named as found then."""
        found = ("revision", "dtype", "device", "attention")
        others = {one.name for one in dataclasses.fields(wanted)} - {"model", *found}
        if any(getattr(wanted, name) != getattr(self.identity, name) for name in others):
            return False
        if wanted.model not in (self.identity.model, self.found.model):
            return False
        return all(_agrees(getattr(wanted, f), getattr(self.identity, f), getattr(self.found, f)) for f in found)


def _agrees(wanted: str | None, asked: str | None, found: str | None) -> bool:
    return wanted == asked or (wanted is not None and wanted == found)


class Started(msgspec.Struct, frozen=True, kw_only=True, tag_field="notice"):
    """The process that will become the engine."""

    pid: int


class Progressed(msgspec.Struct, frozen=True, kw_only=True, tag_field="notice"):
    """A line on the progress of the start, for the user."""

    line: str


class StillStarting(msgspec.Struct, frozen=True, kw_only=True, tag_field="notice"):
    """The present step and its duration, once a second, for a user on another machine."""

    line: str


class Ready(msgspec.Struct, frozen=True, kw_only=True, tag_field="notice"):
    """The engine answers; `entry` is what was written into the registry."""

    entry: Entry


class StartFailed(msgspec.Struct, frozen=True, kw_only=True, tag_field="notice"):
    """The engine did not start; `code` is the class of `djinn_jupyter.errors` to raise."""

    code: str
    message: str


Notice = Started | Progressed | StillStarting | Ready | StartFailed


def encode_notice(notice: Notice) -> bytes:
    """Return one line of JSON on the launcher's pipe."""
    return msgspec.json.encode(notice) + b"\n"


def decode_notice(line: bytes) -> Notice:
    try:
        notice: Notice = msgspec.json.decode(line, type=Notice)
    except (msgspec.MsgspecError, ValueError) as error:
        raise MalformedMessage(f"Not a notice of a starting engine: {error}.") from None
    return notice


def encode_entry(entry: Entry) -> bytes:
    return msgspec.json.format(msgspec.json.encode(_exchanged(entry, math.inf, _ENDLESS)), indent=2)


def decode_entry(text: bytes) -> Entry:
    try:
        return _exchanged(msgspec.json.decode(text, type=Entry), _ENDLESS, math.inf)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise MalformedMessage(f"Not an entry of the engine registry: {error}.") from None


def _exchanged(entry: Entry, old: float, new: float) -> Entry:
    """Return the entry with each option `old` replaced by `new`."""
    given = {field.name: getattr(entry.options, field.name) for field in dataclasses.fields(Options)}
    changed: dict[str, Any] = {name: new for name, value in given.items() if value == old}
    options = dataclasses.replace(entry.options, **changed)
    return msgspec.structs.replace(entry, options=options)
