"""Progress of the work in a session, published to those who follow it."""

from __future__ import annotations

from typing import Final

from djinn_jupyter.engine.session.runtime import Runtime
from djinn_jupyter.engine.session.session import Session
from djinn_jupyter.wire.progress import Progress, WorkProgressed

SECONDS_BETWEEN: Final = 0.2


def publish_progress(
    runtime: Runtime, session: Session, doing: str, done: int, total: int | None, counted: str
) -> None:
    """Note the progress (such as "reading heads", 3 of 8 "lines"), and publish it unless that was done a moment ago."""
    session.progress.note(now := Progress(doing=doing, done=done, total=total, counted=counted))
    if session.progress.is_due(SECONDS_BETWEEN):
        runtime.publish(WorkProgressed(session=session.name, progress=now))
