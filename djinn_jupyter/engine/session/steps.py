"""What a job is made of: steps that give way to others, and may say what they wait for."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Literal

from djinn_jupyter.wire.replies import Reply

Blocked = Callable[[], bool]  # True while there is still something to wait for
Pieces = Generator[Blocked | None, None, None]  # steps that end in nothing
Steps = Generator[Blocked | None, None, Reply]
JobKind = Literal["run", "look"]
