"""A client that asks an engine for as much as a request may name, again and again, in a process of its own."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

from djinn_evaluation.baselines.answering import serve
from djinn_jupyter.errors import DjinnError
from djinn_jupyter.link.channel import SocketChannel
from djinn_jupyter.link.io_thread import IoThread
from djinn_jupyter.link.registry import running_engines
from djinn_jupyter.methods.circuits.request import AttributeEdges, RunCircuits
from djinn_jupyter.methods.datasets.request import Score
from djinn_jupyter.wire import requests as ask

PAIRS: Final = tuple((number % 300, number % 300) for number in range(2**18))
LINES: Final[dict[str, Any]] = {"corrupted": (1, 2), "clean": (1, 3), "metric": "logit(1)"}
ASKED: Final[dict[str, Callable[[], ask.Request]]] = {
    "a million chosen edges": lambda: AttributeEdges(session="heavy", method="exact", chosen=PAIRS * 4, **LINES),
    "four million edges of circuits": lambda: RunCircuits(session="heavy", circuits=(PAIRS,) * 16, **LINES),
    "8,000 prompts of 1,000 tokens": lambda: Score(session="none", prompts=((1,) * 1000,) * 8_000),
}


def ask_again(pid: int, what: str, times: int) -> dict[str, Any]:
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
    serve({"ask_again": ask_again})
