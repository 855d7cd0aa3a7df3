"""A look at what listens at an address: an engine's socket greets every connection, before any key counts."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Final, Literal

from djinn_jupyter.client.engines.afar import Address

LOOK_SECONDS: Final = 5.0
_SIZE: Final = 64
_MECHANISM: Final = slice(12, 32)
_OURS: Final = b"\xff" + bytes(8) + b"\x7f" + b"\x03\x01"
"""The signature and the version of ZMTP 3.1 (rfc.zeromq.org/spec/37), upon which the other side says all of its own
greeting: signature, version, mechanism padded to 20 bytes, whether a server, filler."""

Found = Literal["engine", "other", "lost"]


async def look_at(address: Address) -> Found:
    """Return whether an engine's kind of socket listens there, something else, or the line did not hold so long."""
    said = bytearray()
    try:
        async with asyncio.timeout(LOOK_SECONDS):
            reader, writer = await asyncio.open_connection(address.host.strip("[]"), address.port)
    except OSError:  # TimeoutError among them
        return "lost"
    try:
        with suppress(TimeoutError):  # who says nothing by itself may answer
            await _hear(reader, said, 1)
        writer.write(_OURS)
        await _hear(reader, said, _SIZE)
    except TimeoutError:
        return "other"
    except OSError:
        pass  # what was said before counts
    finally:
        writer.close()
    return _meaning(bytes(said))


async def _hear(reader: asyncio.StreamReader, said: bytearray, size: int) -> None:
    """Add what is said until that are so many bytes, or it is the end. Raises TimeoutError and OSError."""
    async with asyncio.timeout(LOOK_SECONDS):
        while len(said) < size and (more := await reader.read(_SIZE)):
            said += more


def _meaning(said: bytes) -> Found:
    if said[:1] in (b"", b"\xff") and len(said) < _SIZE:
        return "lost"
    signed = said[0] == 0xFF and said[9] == 0x7F
    return "engine" if signed and said[_MECHANISM].rstrip(b"\0") == b"CURVE" else "other"
