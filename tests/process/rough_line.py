"""A line over TCP that delays each piece, carries so many bytes a second, loses some pieces (and with them its
connections, which clients open again), and is cut for a while. As a program it stands between two network namespaces:
the port to listen at, the engine's address, the seconds of delay, the share that is lost, and the seconds for which a
line of input cuts it."""

from __future__ import annotations

import asyncio
import contextlib
import math
import random
import sys
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import djinn_jupyter as dj
from djinn_jupyter.api.engine import RemoteEngine

PIECE = 1 << 14
SPARED = 20  # pieces: the first handshake, which is tried three times and no more


@dataclass(kw_only=True)
class RoughLine:
    """`lost` counts the pieces with which connections were dropped, `passed` all that arrived."""

    engine: tuple[str, int]
    delay_seconds: float
    lost_share: float
    bytes_per_second: float = math.inf
    host: str = "127.0.0.1"
    port: int = 0
    seed: int = 1
    lost: int = 0
    passed: int = 0
    _server: asyncio.Server | None = None
    _writers: set[asyncio.StreamWriter] = field(default_factory=set)

    def __post_init__(self) -> None:
        self._chance = random.Random(self.seed)

    async def mend(self) -> None:
        self._server = await asyncio.start_server(self._join, self.host, self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    def cut(self) -> None:
        """Close all connections, and accept none until it is mended."""
        if self._server is not None:
            self._server.close()
        for writer in tuple(self._writers):
            writer.transport.abort()

    @contextlib.asynccontextmanager
    async def standing(self) -> AsyncIterator[RoughLine]:
        await self.mend()
        try:
            yield self
        finally:
            self.cut()

    async def _join(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        try:
            there, back = await asyncio.open_connection(*self.engine)
        except OSError:
            writer.transport.abort()
            self._writers.discard(writer)
            return
        ends = {writer, back}
        self._writers |= ends
        await asyncio.gather(self._pass(reader, back, ends), self._pass(there, writer, ends))
        self._writers -= ends

    async def _pass(
        self, source: asyncio.StreamReader, target: asyncio.StreamWriter, ends: set[asyncio.StreamWriter]
    ) -> None:
        """Pass pieces on, each `delay_seconds` after it came; a connection of which one is lost is dropped."""
        loop = asyncio.get_running_loop()
        with contextlib.suppress(OSError):
            while piece := await source.read(PIECE):
                if self.passed > SPARED and self._chance.random() < self.lost_share:
                    self.lost += 1
                    break
                loop.call_later(self.delay_seconds, self._arrive, target, piece)
                await asyncio.sleep(len(piece) / self.bytes_per_second)  # the line carries no other meanwhile
        for end in ends:
            loop.call_later(self.delay_seconds, end.transport.abort)

    def _arrive(self, target: asyncio.StreamWriter, piece: bytes) -> None:
        if not target.is_closing():
            self.passed += 1
            target.write(piece)


@dataclass
class Afar:
    """An engine at the end of a line, to which one thread talks, as a cell does."""

    line: RoughLine
    engine: RemoteEngine
    notebook: ThreadPoolExecutor

    def cell(self, work: Callable[[], Any]) -> asyncio.Future[Any]:
        return asyncio.get_running_loop().run_in_executor(self.notebook, work)

    async def cut_for_a_second(self) -> None:
        self.line.cut()
        await asyncio.sleep(1.0)
        await self.line.mend()


@contextlib.asynccontextmanager
async def afar(
    engine: RemoteEngine, key: str | None = None, *, lost_share: float = 0.0, **line: float
) -> AsyncIterator[Afar]:
    """Reach an engine that listens by a key, over a line of its own."""
    host, _, port = engine.entry.listens.removeprefix("tcp://").rpartition(":")
    async with RoughLine(engine=(host, int(port)), lost_share=lost_share, **line).standing() as standing:
        with ThreadPoolExecutor(1) as notebook:
            here = Afar(standing, engine, notebook)
            here.engine = await here.cell(lambda: dj.connect(f"tcp://127.0.0.1:{standing.port}", key=key))
            yield here


def _say(word: str) -> None:
    sys.stdout.write(f"{word}\n")
    sys.stdout.flush()


async def _stand(port: int, engine: str, delay: float, share: float, cut: float) -> None:
    host, _, at = engine.rpartition(":")
    line = RoughLine(engine=(host, int(at)), delay_seconds=delay, lost_share=share, host="0.0.0.0", port=port)
    async with line.standing():
        _say("stands")
        await asyncio.to_thread(sys.stdin.readline)
        line.cut()
        _say("cut")
        await asyncio.sleep(cut)
        await line.mend()
        _say("mended")
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(_stand(int(sys.argv[1]), sys.argv[2], *map(float, sys.argv[3:])))
