"""A line over TCP that a test cuts and mends: it stands between client and engine, in the event loop of the test."""

from __future__ import annotations

import asyncio

import msgspec

from djinn_jupyter.wire.registry import Entry
from tests.ports import free_port

PIECE = 1 << 16
GREETING_BYTES = 64  # of ZMTP


class Relay:
    """With `swallows_requests` or `swallows_replies` what is sent that way arrives no more until the line is mended;
    `swallowed` is how many bytes that were."""

    def __init__(self, entry: Entry) -> None:
        self.lead_to(entry)
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self._port = free_port()
        self.swallows_requests = self.swallows_replies = False
        self.swallowed = 0

    def lead_to(self, entry: Entry) -> None:
        """Lead to this engine from the next connection on."""
        host, _, port = entry.commands.removeprefix("tcp://").rpartition(":")
        self._engine = host, int(port)
        self._entry = entry

    @property
    def entry(self) -> Entry:
        """The entry of the engine, as one that is reached over the line."""
        return msgspec.structs.replace(self._entry, commands=f"tcp://127.0.0.1:{self._port}")

    async def mend(self) -> None:
        self.swallows_requests = self.swallows_replies = False
        self.swallowed = 0
        self._server = await asyncio.start_server(self._join, "127.0.0.1", self._port)

    async def __aenter__(self) -> Relay:
        await self.mend()
        return self

    async def __aexit__(self, *_: object) -> None:
        self.cut()

    def cut(self) -> None:
        """Close all connections, and accept none until it is mended."""
        if self._server is not None:
            self._server.close()
        for writer in self._writers:
            writer.transport.abort()
        self._writers.clear()

    async def _join(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        try:
            there, back = await asyncio.open_connection(*self._engine)
        except OSError:
            writer.transport.abort()
            return
        if writer.transport.is_closing():  # cut meanwhile
            back.transport.abort()
            return
        self._writers.add(back)
        await asyncio.gather(self._pass(reader, back, requests=True), self._pass(there, writer, requests=False))

    async def _pass(self, source: asyncio.StreamReader, target: asyncio.StreamWriter, *, requests: bool) -> None:
        try:
            while piece := await source.read(PIECE):
                if self.swallows_requests if requests else self.swallows_replies:
                    self.swallowed += len(piece)
                else:
                    target.write(piece)
        except OSError:
            pass
        target.transport.abort()


class Breaking(Relay):
    """A line that breaks off the connections on which a CURVE handshake is begun, so many of them: before the engine's
    greeting arrives, or `behind` it. A look at the engine's greeting alone breaks off likewise before it."""

    def __init__(self, entry: Entry, broken: int, *, behind: bool = False) -> None:
        super().__init__(entry)
        self.broken, self._behind = broken, behind

    async def _pass(self, source: asyncio.StreamReader, target: asyncio.StreamWriter, *, requests: bool) -> None:
        if not requests and self.broken:
            self.broken -= 1
            if self._behind:
                target.write(await source.readexactly(GREETING_BYTES))
                await source.read(1)  # of the handshake, or the end of a look
            target.transport.abort()
            return
        await super()._pass(source, target, requests=requests)


class Recording(Relay):
    """A line that keeps what clients send: `recorded` has the bytes of each connection."""

    def __init__(self, entry: Entry) -> None:
        super().__init__(entry)
        self.recorded: list[bytearray] = []

    async def _pass(self, source: asyncio.StreamReader, target: asyncio.StreamWriter, *, requests: bool) -> None:
        if not requests:
            return await super()._pass(source, target, requests=requests)
        sent = bytearray()
        self.recorded.append(sent)
        while piece := await source.read(PIECE):
            sent += piece
            target.write(piece)
        target.transport.abort()
