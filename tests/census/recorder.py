"""A plugin that records what the clients of this process ask and are told: `-p tests.census.recorder`, with the file to
add to in DJINN_RECORDED. It reads today's connection, and ends with it; what it recorded stays."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Final

import pytest

from djinn_jupyter.link.transport import Connection
from djinn_jupyter.wire import codec
from tests.census.recorded import Recorded, distinct, of_no_machine, read, write

LARGEST: Final = 2**15
FOUND: Final[dict[str, Recorded]] = {}
_ASKED: Final[dict[tuple[int, int], list[bytes]]] = {}


def pytest_configure(config: pytest.Config) -> None:
    """Keep the frames of each request by its connection and number, until the reply comes."""
    send, answer = Connection._send_pending, Connection._answer

    def sending(self: Connection, number: int, sent: Any) -> None:
        _ASKED[id(self), number] = of_no_machine(sent.frames)
        send(self, number, sent)

    def answering(self: Connection, frames: list[codec.WireFrame]) -> None:
        told = of_no_machine(frames)
        if (asked := _ASKED.pop((id(self), codec.read_number(told) or 0), None)) is not None:
            _keep(Recorded(by=os.environ.get("PYTEST_CURRENT_TEST", "").partition(" ")[0], request=asked, reply=told))
        answer(self, frames)

    Connection._send_pending, Connection._answer = sending, answering


def _keep(one: Recorded) -> None:
    shape = one.shape
    if shape not in FOUND or FOUND[shape].size > one.size:
        FOUND[shape] = one


def pytest_unconfigure() -> None:
    path = Path(os.environ["DJINN_RECORDED"])
    before = read(path) if path.exists() else []
    write(path, distinct([*before, *FOUND.values()], LARGEST))
