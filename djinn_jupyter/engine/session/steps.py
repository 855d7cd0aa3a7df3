"""The steps of a job: between them other jobs run, and a step may name the condition that it waits for."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Literal

from djinn_jupyter.wire.replies import Reply

Blocked = Callable[[], bool]  # True while there is still something to wait for
Pieces = Generator[Blocked | None, None, None]  # steps that return nothing
Steps = Generator[Blocked | None, None, Reply]  # those of a request, which return its reply
JobKind = Literal["run", "look"]


class GaveWay(Exception):
    """Raised in work that waits for room when it gives what it has reserved to work that was begun earlier."""
