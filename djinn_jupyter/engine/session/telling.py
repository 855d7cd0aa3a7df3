"""Tells those who follow a session how far the work in it is."""

from __future__ import annotations

import time
from typing import Final

from djinn_jupyter.engine.session.runtime import Runtime
from djinn_jupyter.engine.session.session import Session
from djinn_jupyter.wire.progress import Doing, Progress, WorkProgressed

TOLD_SECONDS: Final = 0.2


def tell(runtime: Runtime, session: Session, doing: Doing, done: int, total: int | None) -> None:
    """Note the progress, and publish it unless that was done a moment ago."""
    progress = session.progress
    progress.note(now := Progress(doing=doing, done=done, total=total))
    if time.monotonic() - progress.told >= TOLD_SECONDS:
        progress.told = time.monotonic()
        runtime.publish(WorkProgressed(session=session.name, progress=now))
