"""Waiting for what another process or thread does in its own time: a condition and a deadline, no guessed sleep."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

Found = TypeVar("Found")
SECONDS = 120.0
PAUSE = 0.01


def until(look: Callable[[], Found], what: str = "it") -> Found:
    """Look again and again; return what is found once it is true. Fails if it is not within SECONDS."""
    deadline = time.monotonic() + SECONDS
    while not (found := look()):
        assert time.monotonic() < deadline, f"{what} has not happened within {SECONDS:g} s: {found!r}"
        time.sleep(PAUSE)
    return found
