"""A client with a slow connection, such as a phone's: seconds and bytes of a stop and of reading values there."""

from __future__ import annotations

import queue
import socket
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec

from djinn_evaluation.course import Course, Unmeasured, timed
from djinn_evaluation.serving import LINE_OF_ITS_OWN, is_afar, paused
from djinn_jupyter.api.engine import RemoteEngine
from djinn_jupyter.link.channel import SocketChannel
from djinn_jupyter.link.io_thread import IoThread
from djinn_jupyter.wire.registry import Entry

PIECE: Final = 1 << 14  # bytes that are passed on at once


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """Both ways alike."""

    bits_per_second: float
    delay_seconds: float

    def seconds(self, nbytes: int) -> float:
        """Return the seconds that the connection needs for so many bytes."""
        return 8 * nbytes / self.bits_per_second


@contextmanager
def over(line: Line, entry: Entry) -> Iterator[Entry]:
    """Yield the entry of an engine, with addresses that lead to it over the line."""
    with tempfile.TemporaryDirectory(prefix="djinn-line-") as folder:
        relay = _Relay(line, Path(folder) / "commands", entry.commands)
        relay.start()
        try:
            yield msgspec.structs.replace(entry, commands=relay.address)
        finally:
            relay.stop()


class _Relay:
    """Accepts clients at a path, and joins each with the engine."""

    def __init__(self, line: Line, path: Path, engine: str) -> None:
        self._line, self._engine, self._open = line, engine, []  # type: ignore[var-annotated]
        self.address = f"ipc://{path}"
        self._door = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._door.bind(str(path))
        self._door.listen()

    def start(self) -> None:
        threading.Thread(target=self._accept, name="djinn-line", daemon=True).start()

    def stop(self) -> None:
        for one in (self._door, *self._open):
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()

    def _accept(self) -> None:
        with suppress(OSError):  # the door is closed
            while True:
                client, _ = self._door.accept()
                engine = _connected(self._engine)
                self._open += [client, engine]
                for source, target in ((client, engine), (engine, client)):
                    _join(self._line, source, target)


def _connected(address: str) -> socket.socket:
    if address.startswith("ipc://"):
        found = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        found.connect(address.removeprefix("ipc://"))
        return found
    host, _, port = address.removeprefix("tcp://").rpartition(":")
    return socket.create_connection((host.strip("[]"), int(port)))


def _join(line: Line, source: socket.socket, target: socket.socket) -> None:
    """Pass bytes on one way: one thread notes when each piece is to arrive, another sends it then."""
    on_the_way: queue.Queue[tuple[float, bytes]] = queue.Queue()
    for work in (_receive, _deliver):
        threading.Thread(target=work, args=(line, source, target, on_the_way), name="djinn-line", daemon=True).start()


def _receive(
    line: Line, source: socket.socket, target: socket.socket, pieces: queue.Queue[tuple[float, bytes]]
) -> None:
    free = 0.0
    with suppress(OSError):
        while piece := source.recv(PIECE):
            free = max(free, time.monotonic()) + line.seconds(len(piece))
            pieces.put((free + line.delay_seconds, piece))
    pieces.put((0.0, b""))


def _deliver(
    line: Line, source: socket.socket, target: socket.socket, pieces: queue.Queue[tuple[float, bytes]]
) -> None:
    with suppress(OSError):
        while True:
            due, piece = pieces.get()
            if not piece:
                target.shutdown(socket.SHUT_WR)
                return
            time.sleep(max(0.0, due - time.monotonic()))
            target.sendall(piece)


LINE: Final = Line(bits_per_second=50e6, delay_seconds=0.02)
REPETITIONS: Final = 6


def measure_thin_client(course: Course, engine: RemoteEngine, layer: int, prompt: list[int]) -> Any:
    """Return the fields of `slow_line`: `seconds` from the request until a stop and the hidden state of its last
    position are there, of each repetition; the same bytes and seconds of the whole hidden state beside."""
    if engine.entry is None:
        return Unmeasured(reason="the engine has no address of its own")
    if is_afar(engine):
        return LINE_OF_ITS_OWN
    course.check_time()
    with _afar(engine) as client:
        session = client.session("thin client", fresh=True)
        session.breakpoint(f"resid_post.{layer}", when="step == 0")
        found = [_stopped(client, session, prompt) for _ in range(REPETITIONS)]
        session.close()
    names = ("seconds", "bytes", "seconds_of_all_positions", "bytes_of_all_positions")
    fields = dict(zip(names, (list(column) for column in zip(*found, strict=True)), strict=True))
    return {"bits_per_second": LINE.bits_per_second, "delay_seconds": LINE.delay_seconds, **fields}


def _stopped(client: RemoteEngine, session: Any, prompt: list[int]) -> tuple[float, int, float, int]:
    def stop() -> Any:
        reached = paused(session.run(prompt, max_new_tokens=1, ignore_eos=True))
        session.inspect(positions=-1)
        return reached

    begun = client.wire_bytes
    reached, milliseconds = timed(stop)
    there = client.wire_bytes
    _, more = timed(lambda: reached.hidden)
    ended = client.wire_bytes
    crossed = there.sent + there.received - begun.sent - begun.received
    further = ended.sent + ended.received - there.sent - there.received
    return milliseconds / 1000, crossed, more / 1000, further


@contextmanager
def _afar(engine: RemoteEngine) -> Iterator[RemoteEngine]:
    """Yield the same engine to a client of its own, at the other end of the line."""
    assert engine.entry is not None
    with over(LINE, engine.entry) as entry:
        thread = IoThread()
        channel = SocketChannel(thread, entry, holder="thin client", user="thin client", notebook=None)
        try:
            yield RemoteEngine(channel, entry)
        finally:
            channel.close()
            thread.stop()
