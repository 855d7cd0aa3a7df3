"""Meet an engine: its socket with the keys of both sides, and a check of what listens at an address (an engine's socket
greets every connection, before any key counts)."""

from __future__ import annotations

import asyncio
import os
import socket
from contextlib import suppress
from typing import Final, Literal

import zmq

from djinn_jupyter.errors import DjinnError, EngineUnavailable, KeyRefused
from djinn_jupyter.link.io_thread import Take
from djinn_jupyter.link.transport import Context, EngineSocket
from djinn_jupyter.remote.addresses import Address, key_folder, read_address
from djinn_jupyter.wire.keys import spell_public
from djinn_jupyter.wire.registry import Entry

LOOK_SECONDS: Final = 5.0
_SIZE: Final = 64
_MECHANISM: Final = slice(12, 32)
_OURS: Final = b"\xff" + bytes(8) + b"\x7f" + b"\x03\x01"
"""The signature and the version of ZMTP 3.1 (rfc.zeromq.org/spec/37), upon which the other side says all of its own
greeting: signature, version, mechanism padded to 20 bytes, whether a server, filler."""

Found = Literal["engine", "other", "lost"]


async def look_at(address: Address) -> Found:
    """Return whether an engine's kind of socket listens there, something else, or it ended too soon to know."""
    said = bytearray()
    try:
        async with asyncio.timeout(LOOK_SECONDS):
            reader, writer = await asyncio.open_connection(address.host.strip("[]"), address.port)
    except OSError:  # TimeoutError among them
        return "lost"
    try:
        with suppress(TimeoutError):  # a silent one may answer
            await _hear(reader, said, 1)
        writer.write(_OURS)
        await _hear(reader, said, _SIZE)
    except TimeoutError:
        return "other"
    except OSError:
        pass  # what was received before counts
    finally:
        writer.close()
    return _meaning(bytes(said))


async def _hear(reader: asyncio.StreamReader, said: bytearray, size: int) -> None:
    """Receive up to so many bytes, or to the end. Raises TimeoutError and OSError."""
    async with asyncio.timeout(LOOK_SECONDS):
        while len(said) < size and (more := await reader.read(_SIZE)):
            said += more


def _meaning(said: bytes) -> Found:
    if said[:1] in (b"", b"\xff") and len(said) < _SIZE:
        return "lost"
    signed = said[0] == 0xFF and said[9] == 0x7F
    return "engine" if signed and said[_MECHANISM].rstrip(b"\0") == b"CURVE" else "other"


REACH_SECONDS: Final = 5.0
HANDSHAKE_MILLISECONDS = 10_000  # after which a silent side is no engine; zmq waits for 30 s
ATTEMPTS: Final = 3  # to meet a remote engine: one connection in a hundred breaks, and a wrong key always fails
AGAIN_MILLISECONDS: Final = 200
CONNECT_MILLISECONDS: Final = 2000  # the system's own attempts come after 1, 3, 7, 15 s


async def require_reachable(entry: Entry) -> None:
    """Raise EngineUnavailable, within REACH_SECONDS, where nothing listens at the address of a remote engine."""
    address = read_address(entry.commands)
    try:
        _, writer = await asyncio.wait_for(
            asyncio.open_connection(address.host.strip("[]"), address.port), REACH_SECONDS
        )
    except TimeoutError:
        raise EngineUnavailable(f"{address} did not answer within {REACH_SECONDS:.0f} s: is the port open?") from None
    except (OSError, UnicodeError) as error:
        raise EngineUnavailable(
            f"Nothing listens at {address} ({_why(error)}): start it there with "
            f"`djinn serve MODEL --listen tcp://0.0.0.0:{address.port}`."
        ) from None
    writer.close()


def _why(error: OSError | UnicodeError) -> str:
    if isinstance(error, socket.gaierror | UnicodeError):  # the latter for a text that no machine can be named
        return "no machine of that name is known here"
    if error.errno is None:  # asyncio's, for a name of several addresses
        return "none of its addresses answers"
    return os.strerror(error.errno).lower()


def set_keys(dealer: zmq.Socket[bytes], entry: Entry) -> None:
    """Give a socket the keys of both sides, from this user's folder. UsageError where this user's key is ambiguous;
    KeyRefused where no key is trusted for its address."""
    folder, address = key_folder(), read_address(entry.commands)
    own, server = folder.own(entry.key), folder.trusted(str(address), address.host)
    if server is None:
        raise KeyRefused(
            f"No key is trusted for {address.host}: write `djinn key trust {address.host} PUBLIC`, the line that "
            "`djinn key allow` prints there."
        )
    dealer.setsockopt(zmq.CURVE_SERVERKEY, server)
    dealer.setsockopt(zmq.CURVE_PUBLICKEY, own.public)
    dealer.setsockopt(zmq.CURVE_SECRETKEY, own.secret)
    dealer.setsockopt(zmq.HANDSHAKE_IVL, HANDSHAKE_MILLISECONDS)
    dealer.setsockopt(zmq.HEARTBEAT_IVL, 5000)
    dealer.setsockopt(zmq.IPV6, 1)


class Unmet(Exception):
    """An engine was not met. `breach`: possibly because of the connection, so that another attempt may succeed. Never
    shown to a caller."""

    def __init__(self, breach: DjinnError | None, why: DjinnError) -> None:
        super().__init__(str(why))
        self.breach, self.why = breach, why


class RemoteSocket(EngineSocket):
    """A socket of an engine on another machine, with the keys of both sides. A `patient` one, that was not yet
    connected, keeps trying where nothing listens."""

    def __init__(self, context: Context, entry: Entry, take: Take, *, patient: bool) -> None:
        self._entry, self._patient = entry, patient
        self._succeeded = self.refused = False
        super().__init__(context, entry.commands, take)

    def _prepare(self, socket: zmq.Socket[bytes]) -> None:
        super()._prepare(socket)
        socket.setsockopt(zmq.CONNECT_TIMEOUT, CONNECT_MILLISECONDS)
        if self._patient:
            socket.setsockopt(zmq.RECONNECT_IVL, AGAIN_MILLISECONDS)
        if self._entry.has_keys:
            set_keys(socket, self._entry)

    def _note(self, event: int) -> None:
        self._succeeded |= event == zmq.EVENT_HANDSHAKE_SUCCEEDED
        self.refused |= event == zmq.EVENT_HANDSHAKE_FAILED_AUTH
        if event != zmq.EVENT_CLOSED or not self._patient:
            super()._note(event)

    def refusal(self) -> KeyRefused | None:
        """Return the error where the engine does not admit this user's key, else None."""
        if not self.refused or not self._entry.has_keys:
            return None
        own = spell_public(key_folder().own(self._entry.key).public)
        return KeyRefused(f"{self._entry.named} does not admit your key: there, `djinn key allow {own} --as NAME`.")

    async def breach(self) -> DjinnError | None:
        """Return the error where the connection was closed before both sides knew each other's keys, depending on what
        is at the address now. None where it lasted longer, and where there are no keys. Raises EngineUnavailable where
        there is no engine."""
        if self._succeeded or self.refused or not self._entry.has_keys:
            return None
        match await look_at(read_address(self._entry.commands)):
            case "other":
                raise EngineUnavailable(
                    f"What listens at {self._entry.place} is no engine of Djinn that others reach: mind the port, and "
                    "see `djinn list` there."
                )
            case "lost":
                return EngineUnavailable(
                    f"The line to {self._entry.place} broke off before either side knew the other, {ATTEMPTS} times: "
                    "try again, over a better line."
                )
        return KeyRefused(
            f"{self._entry.named} has not the key that is trusted for it, or the line broke off each of {ATTEMPTS} "
            "handshakes: compare `djinn key list` there and here."
        )
