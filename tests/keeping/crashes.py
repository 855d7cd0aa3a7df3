"""What an engine leaves when it dies, and the engine that finds it."""

from __future__ import annotations

import shutil
from pathlib import Path

from djinn_jupyter.engine.keeping.recovery import open_journal
from tests.engine.desk import Desk


def journal(desk: Desk, folder: Path) -> tuple[str, ...]:
    """Let an engine keep a journal in `folder`; the sessions that it found there."""
    desk.engine.keeping._journals = folder / "journals"
    return open_journal(desk.engine)


def written(desk: Desk) -> None:
    """Return when the journal has all that happened."""
    kept = desk.engine.keeping.journal
    assert kept is not None
    while True:
        kept.attend(desk.engine.sessions)
        kept._wait()
        if not kept._touched:
            return


def crashed(folder: Path, into: Path) -> Path:
    """The files as they are at this moment, as a killed process leaves them: nothing is flushed or put in order."""
    shutil.copytree(folder, into)
    return into


def forget(desk: Desk) -> None:
    """End the journal of an engine that other tests use as well."""
    desk.close_all()
    kept = desk.engine.keeping.journal
    assert kept is not None
    kept.close(desk.engine.sessions, forget=True)
    desk.engine.keeping.journal = None
