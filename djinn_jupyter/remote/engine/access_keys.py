"""Access keys at the engine: the address to which persons connect, and whom a key admits.

A key is looked up at the handshake and for every message, so a revoked person is refused from the next message on, and
receives no more. Knows no sockets but the one that tries an address."""

from __future__ import annotations

import socket
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from jupyter_core.paths import jupyter_data_dir
from zmq.utils import z85

from djinn_jupyter.errors import KeyRefused, UsageError
from djinn_jupyter.units import spell_moment
from djinn_jupyter.wire.keys import FOLDER as KEYS
from djinn_jupyter.wire.keys import LOCAL, Admitted, Draw, KeyFolder, KeyPair, PublicKey
from djinn_jupyter.wire.own import host_name
from djinn_jupyter.wire.people import NO_QUOTA, PersonQuotas, Quota, QuotaFolder, read_quota
from djinn_jupyter.wire.replies import Failed

DOMAIN: Final = "djinn"  # of zmq's authentication
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
    """An address beyond this machine, `tcp://HOST:PORT`, the key that identifies its engine there, and the persons who
    are admitted."""

    address: str
    pair: KeyPair = field(repr=False)
    admitted: Admitted
    keys: KeyFolder

    @classmethod
    def at(cls, address: str, draw: Draw) -> Door:
        """Return the door with this user's keys."""
        keys = KeyFolder(Path(jupyter_data_dir()) / KEYS)
        return cls(address=address, pair=keys.server(host_name(), draw), admitted=keys.admitted(), keys=keys)

    def quotas(self, common: Quota) -> PersonQuotas:
        """Return the quota of each person, over this common one."""
        return PersonQuotas(QuotaFolder(self.keys), common)


class Doorkeeper:
    """Answers the handshakes of a door: whether a key is admitted now."""

    def __init__(self, door: Door) -> None:
        self._admitted = door.admitted

    def callback(self, domain: str, key: bytes) -> bool:
        return domain == DOMAIN and self._admitted.name_of(z85.decode(key)) is not None


def read_common(quota: str | None, listen: str | None) -> Quota:
    """Return the limits of each person. UsageError for an invalid quota, or where only the engine's own user comes."""
    if quota is not None and listen is None:
        raise UsageError("A quota is for persons with keys, who come where an engine listens: give --listen too.")
    return NO_QUOTA if quota is None else NO_QUOTA.but(read_quota(quota))


def require_free(address: str) -> None:
    """Raise UsageError where nothing can listen on `tcp://HOST:PORT` now; port `*` or 0 is any free one."""
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


class AdmittedKeys:
    """The persons behind the keys of connections. LOCAL is the engine's own user's."""

    def __init__(self, admitted: Admitted | None) -> None:
        self._admitted = admitted

    def name_of(self, key: PublicKey) -> str | None:
        """Return the person of a key, None where it is not admitted."""
        return self._admitted.name_of(key) if self._admitted else None

    def person(self, key: PublicKey) -> str | None:
        """Return the person of a key, None for the engine's own user. Raises KeyRefused for a person who is not
        admitted."""
        name = self.name_of(key)
        if name is None and key != LOCAL:
            raise KeyRefused(self.refusal(key).message)
        return name

    def refusal(self, key: PublicKey) -> Failed:
        """Return the sentence for the clients of a key that is no longer admitted."""
        permit = self._admitted.permit(key) if self._admitted else None
        if permit is None or permit.until is None:
            return REFUSED
        return Failed(code="KeyRefused", message=_ENDED.format(until=spell_moment(permit.until)))

    def admits(self, key: PublicKey) -> bool:
        return key == LOCAL or self.name_of(key) is not None
