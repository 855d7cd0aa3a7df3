"""A line between client and engine: all bytes arrive in order, and no sooner than the line lets them."""

from __future__ import annotations

import socket
import threading
import time
from pathlib import Path

import msgspec

from djinn_evaluation.whitebox.slow_line import Line, over
from tests.process.served import entry_for

LINE = Line(bits_per_second=8e6, delay_seconds=0.01)
SENT = bytes(range(256)) * 400


def echo(path: Path) -> socket.socket:
    """Answer one client at a path with its own bytes."""
    door = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    door.bind(str(path))
    door.listen()

    def serve() -> None:
        client, _ = door.accept()
        while piece := client.recv(1 << 16):
            client.sendall(piece)
        client.close()

    threading.Thread(target=serve, daemon=True).start()
    return door


def test_bytes_cross_in_order_and_take_their_time(tmp_path: Path) -> None:
    with echo(tmp_path / "engine"):
        engine = f"ipc://{tmp_path / 'engine'}"
        entry = msgspec.structs.replace(entry_for(engine), mark="the engine's")
        with over(LINE, entry) as afar, socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
            assert (afar.mark, afar.commands != entry.commands) == (entry.mark, True)
            client.connect(afar.commands.removeprefix("ipc://"))
            begun = time.monotonic()
            client.sendall(SENT)
            client.shutdown(socket.SHUT_WR)
            back = b"".join(iter(lambda: client.recv(1 << 16), b""))
            taken = time.monotonic() - begun
    assert back == SENT
    assert taken >= LINE.seconds(len(SENT)) + 2 * LINE.delay_seconds
