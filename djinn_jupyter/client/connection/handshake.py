"""The handshake with an engine afar: the keys of both sides, and the sentence for each way in which it fails."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Sequence
from typing import Final

import zmq
from zmq.utils.monitor import parse_monitor_message

from djinn_jupyter.client.engines.afar import read_address
from djinn_jupyter.client.engines.keys import key_folder
from djinn_jupyter.errors import EngineUnavailable, KeyRefused
from djinn_jupyter.wire.keys import spell_public
from djinn_jupyter.wire.registry import Entry

REACH_SECONDS: Final = 5.0
HANDSHAKE_MILLISECONDS = 10_000  # after which who has said nothing is taken for no engine; zmq waits for 30 s
WATCHED: Final = (
    zmq.EVENT_DISCONNECTED | zmq.EVENT_CLOSED | zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_HANDSHAKE_FAILED_AUTH
)


async def require_reachable(entry: Entry) -> None:
    """Raise EngineUnavailable, within REACH_SECONDS, where nothing listens at the address of an engine afar."""
    address = read_address(entry.commands)
    try:
        _, writer = await asyncio.wait_for(
            asyncio.open_connection(address.host.strip("[]"), address.port), REACH_SECONDS
        )
    except TimeoutError:
        raise EngineUnavailable(f"{address} did not answer within {REACH_SECONDS:.0f} s: is the port open?") from None
    except OSError as error:
        raise EngineUnavailable(
            f"Nothing listens at {address} ({_why(error)}): start it there with "
            f"`djinn serve MODEL --listen tcp://0.0.0.0:{address.port}`."
        ) from None
    writer.close()


def _why(error: OSError) -> str:
    if isinstance(error, socket.gaierror):
        return "no machine of that name is known here"
    if error.errno is None:  # asyncio's, for a name of several addresses
        return "none of its addresses answers"
    return os.strerror(error.errno).lower()


def set_keys(dealer: zmq.Socket[bytes], entry: Entry) -> None:
    """Give a socket the keys of both sides, read from this user's folder. UsageError where it is not clear by which key
    the engine should know this user; KeyRefused where no key is trusted for its address."""
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


class Handshake:
    """The course of a handshake, by the events of its socket's monitor. `over` is set when the connection is closed; a
    `patient` socket that was not yet connected goes on trying."""

    def __init__(self, entry: Entry, *, patient: bool = False) -> None:
        self._entry, self._patient = entry, patient
        self.over = asyncio.Event()
        self._succeeded = self.refused = False

    def note(self, frames: Sequence[zmq.Frame]) -> None:
        event = parse_monitor_message([frame.bytes for frame in frames])["event"]
        self._succeeded |= event == zmq.EVENT_HANDSHAKE_SUCCEEDED
        self.refused |= event == zmq.EVENT_HANDSHAKE_FAILED_AUTH
        if event not in (zmq.EVENT_HANDSHAKE_SUCCEEDED, zmq.EVENT_CLOSED if self._patient else None):
            self.over.set()

    def failure(self) -> KeyRefused | None:
        """Return the error for which the connection did not come about; None where keys were not the reason."""
        if self._succeeded or not self._entry.has_keys:
            return None
        if self.refused:
            own = spell_public(key_folder().own(self._entry.key).public)
            return KeyRefused(f"{self._entry.named} does not admit your key: there, `djinn key allow {own} --as NAME`.")
        return KeyRefused(
            f"{self._entry.named} has not the key that is trusted for it, or is no engine of Djinn: compare "
            "`djinn key list` there and here."
        )
