"""The admission of persons by their keys, looked up for every message: one who was revoked is refused from the next
message on, and hears no more. Knows no sockets."""

from __future__ import annotations

import socket
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from jupyter_core.paths import jupyter_data_dir
from zmq.utils import z85

from djinn_jupyter.errors import KeyRefused, UsageError
from djinn_jupyter.moments import spell_moment
from djinn_jupyter.wire.host import host_name
from djinn_jupyter.wire.keys import FOLDER, Admitted, Draw, KeyFolder, KeyPair, PublicKey
from djinn_jupyter.wire.quotas import PersonQuotas, Quota, QuotaFolder
from djinn_jupyter.wire.replies import Failed

DOMAIN: Final = "djinn"  # of zmq's authentication
LOCAL: Final[PublicKey] = b""  # in the place of a key, over the private folder: the engine's own user
UNKNOWN_KEY: Final[PublicKey] = b"unknown"  # of a connection that is not known, admitted nowhere
REFUSED: Final = Failed(
    code="KeyRefused",
    message="The engine does not admit this key any more: ask its user, who can admit it again (`djinn key allow`); "
    "in a JupyterHub, load again.",
)

_ENDED: Final = (
    "This key was admitted until {until}: ask the engine's user, who can admit it again (`djinn key allow`); in a "
    "JupyterHub, load again."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Door:
    """An address beyond this machine, `tcp://HOST:PORT`, the key by which its engine is known there, and the persons
    who are admitted."""

    address: str
    pair: KeyPair = field(repr=False)
    admitted: Admitted
    keys: KeyFolder

    @classmethod
    def at(cls, address: str, draw: Draw) -> Door:
        """Return the door that this user's keys open."""
        keys = KeyFolder(Path(jupyter_data_dir()) / FOLDER)
        return cls(address=address, pair=keys.server(host_name(), draw), admitted=keys.admitted(), keys=keys)

    def quotas(self, common: Quota) -> PersonQuotas:
        """Return the quota of each person, with this common one."""
        return PersonQuotas(QuotaFolder(self.keys), common)


class Doorkeeper:
    """Answers the handshakes of a door: whether a key is admitted now."""

    def __init__(self, door: Door) -> None:
        self._admitted = door.admitted

    def callback(self, domain: str, key: bytes) -> bool:
        return domain == DOMAIN and self._admitted.name_of(z85.decode(key)) is not None


def require_free(address: str) -> None:
    """Raise UsageError where nothing can listen on `tcp://HOST:PORT` now; port `*` or 0 is any that is free."""
    host, _, port = address.removeprefix("tcp://").rpartition(":")
    try:
        family, kind, _, _, where = socket.getaddrinfo(
            host.strip("[]"), 0 if port == "*" else int(port), type=socket.SOCK_STREAM
        )[0]
        with socket.socket(family, kind) as tried:
            tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            tried.bind(where)
    except OSError as error:
        raise UsageError(
            f"The engine cannot listen on {address} ({(error.strerror or str(error)).lower()}): give another address "
            "with --listen, or leave it out."
        ) from None


class Admission:
    """The persons behind the keys of a service's connections, and those keys: each is noted, also LOCAL, and a
    connection that is not known has UNKNOWN_KEY."""

    def __init__(self, admitted: Admitted | None) -> None:
        self._admitted = admitted
        self._keys: dict[bytes, PublicKey] = {}

    def note(self, peer: bytes, key: PublicKey) -> None:
        """Note the key of the connection on which a client's message came."""
        self._keys[peer] = key

    def key(self, peer: bytes) -> PublicKey:
        """Return the key of a client's connection, LOCAL over the private folder."""
        return self._keys.get(peer, UNKNOWN_KEY)

    def name_of(self, key: PublicKey) -> str | None:
        """Return the person of a key, None where it is not admitted."""
        return self._admitted.name_of(key) if self._admitted else None

    def person(self, key: PublicKey) -> str | None:
        """Return the person of a key, None for the engine's own user. Raises KeyRefused for one who is not admitted."""
        name = self.name_of(key)
        if name is None and key != LOCAL:
            raise KeyRefused(self.refusal(key).message)
        return name

    def refusal(self, key: PublicKey) -> Failed:
        """Return what is said to the clients of a key that is not admitted any more."""
        permit = self._admitted.permit(key) if self._admitted else None
        if permit is None or permit.until is None:
            return REFUSED
        return Failed(code="KeyRefused", message=_ENDED.format(until=spell_moment(permit.until)))

    def admits(self, key: PublicKey) -> bool:
        return key == LOCAL or self.name_of(key) is not None

    def turned_away(self) -> list[bytes]:
        """Return the clients that are not admitted any more."""
        return [peer for peer, key in self._keys.items() if not self.admits(key)]

    def keep_only(self, known: Callable[[bytes], bool]) -> None:
        """Forget the clients that are not known any more, or have not said who they are."""
        for peer in [peer for peer in self._keys if not known(peer)]:
            self.forget(peer)

    def forget(self, peer: bytes) -> None:
        """Forget a client until its next message."""
        self._keys.pop(peer, None)
