"""Other ends of a socket: one that only echoes, and a client that asks an engine for as much as a request may name."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

import zmq

from djinn_evaluation.baselines.asking import serve
from djinn_jupyter.errors import DjinnError
from djinn_jupyter.link.channel import SocketChannel
from djinn_jupyter.link.io_thread import IoThread
from djinn_jupyter.link.registry import running_engines
from djinn_jupyter.methods.circuits.request import AttributeEdges, RunCircuits
from djinn_jupyter.methods.datasets.request import Score
from djinn_jupyter.wire import requests as ask


class Echo:
    def bind(self, endpoint: str, replied: int | None = None) -> dict[str, Any]:
        """Answer here from now on, on a polling thread: by the message itself, or by `replied` bytes."""
        router = zmq.Context.instance().socket(zmq.ROUTER)
        router.bind(endpoint)
        threading.Thread(target=self._answer, args=(router, replied), daemon=True).start()
        return {}

    def _answer(self, router: zmq.Socket[bytes], replied: int | None) -> None:
        reply = None if replied is None else bytes(replied)
        poller = zmq.Poller()
        poller.register(router, zmq.POLLIN)
        while True:
            poller.poll()
            asker, *message = router.recv_multipart(zmq.NOBLOCK)
            router.send_multipart([asker, *(message if reply is None else [reply])], zmq.NOBLOCK, copy=reply is None)


PAIRS: Final = tuple((number % 300, number % 300) for number in range(2**18))
LINES: Final[dict[str, Any]] = {"corrupted": (1, 2), "clean": (1, 3), "metric": "logit(1)"}
ASKED: Final[dict[str, Callable[[], ask.Request]]] = {
    "a million chosen edges": lambda: AttributeEdges(session="heavy", method="exact", chosen=PAIRS * 4, **LINES),
    "four million edges of circuits": lambda: RunCircuits(session="heavy", circuits=(PAIRS,) * 16, **LINES),
    "8,000 prompts of 1,000 tokens": lambda: Score(session="none", prompts=((1,) * 1000,) * 8_000),
}


class Heavy:
    def ask_again(self, pid: int, what: str, times: int) -> dict[str, Any]:
        """Ask an engine so many times; return how many replies there were. What is refused had to be read, too."""
        thread, [entry] = IoThread(), [one for one in running_engines() if one.pid == pid]
        channel = SocketChannel(thread, entry, holder="heavy", user="benchmark", notebook=None)
        channel.ask(ask.Open(session="heavy")).result()
        replies = 0
        for _ in range(times):
            with suppress(DjinnError):
                channel.ask(ASKED[what]()).result()
            replies += 1
        channel.ask(ask.Close(session="heavy")).result()
        channel.close()
        thread.stop()
        return {"replies": replies}


if __name__ == "__main__":
    serve(Echo, Heavy)
