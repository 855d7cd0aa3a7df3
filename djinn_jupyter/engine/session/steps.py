"""The steps of a job: between them other jobs run, and a step may name the condition that it waits for."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Literal, TypeVar

from djinn_jupyter.wire.reply_base import ReplyBase
from djinn_jupyter.wire.running import Finished, Paused

Answer = TypeVar("Answer", bound=ReplyBase)
Blocked = Callable[[], bool]  # True while there is still something to wait for
Pieces = Generator[Blocked | None, None, None]  # steps that return nothing
Steps = Generator[Blocked | None, None, Answer]  # those of a request, which return its reply
RunSteps = Steps[Paused | Finished]
JobKind = Literal["run", "look"]


class GaveWay(Exception):
    """Raised in work that waits for room when it gives what it has reserved to work that was begun earlier."""
