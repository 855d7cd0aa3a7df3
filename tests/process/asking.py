"""A client that asks for the same things again and again, as fast as they are answered, in a process of its own:
`python -m tests.process.asking ENDPOINT FILE` with the frames of requests, of which the first two begin. It writes a
line once it asks for the others, and goes on until it is killed."""

from __future__ import annotations

import sys
from itertools import count, cycle
from pathlib import Path

import msgspec
import zmq

from djinn_jupyter.wire import codec

NUMBER = 2**40  # of a request, which eight bytes tell, and in that place of its head
AT = slice(5, 13)


def main(endpoint: str, path: str) -> None:
    hello, opening, *asked = msgspec.msgpack.decode(Path(path).read_bytes(), type=list[list[bytes]])
    socket = zmq.Context().socket(zmq.DEALER)
    socket.connect(endpoint)
    numbers = count(NUMBER)
    for frames in (hello, opening):
        _ask(socket, frames, next(numbers))
    sys.stdout.write("asking\n")
    sys.stdout.flush()
    for frames in cycle(asked):
        _ask(socket, frames, next(numbers))


def _ask(socket: zmq.Socket[bytes], frames: list[bytes], number: int) -> None:
    """Send a request under this number, and read what comes until its reply."""
    head = bytearray(frames[0])
    head[AT] = number.to_bytes(8, "big")
    socket.send_multipart([head, *frames[1:]], copy=False)
    while True:
        came = socket.recv_multipart()
        if not codec.is_event(came) and codec.read_number(came) == number:
            return


if __name__ == "__main__":
    main(*sys.argv[1:])
