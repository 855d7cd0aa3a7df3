"""Images of running sessions take a part of the engine's time, and each session has its turn."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from djinn_jupyter.engine.session.session import Session
from djinn_jupyter.engine.store import journal as journals
from djinn_jupyter.engine.store.journal import Journal
from djinn_jupyter.errors import CheckpointRefused
from tests.engine.desk import Desk
from tests.engine.persistence.crashes import forget
from tests.engine.persistence.test_parting import office

NAMES = "abcd"
TICK, IMAGE = 0.001, 0.002  # seconds of the clock below


def running(desk: Desk, patch: pytest.MonkeyPatch, clock: list[float]) -> Journal:
    """Have the journal of four sessions that run, by the clock."""
    journal = desk.engine.persistence.journal
    for name in NAMES:
        desk.open(name)
    patch.setattr(journals, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    for name in NAMES:
        patch.setattr(desk.session(name), "state", "running")
    return journal


def attend(desk: Desk, journal: Journal, clock: list[float], times: int) -> None:
    for _ in range(times):
        for name in NAMES:
            journal.touch(name)
        journal.attend(desk.engine.sessions)
        clock[0] += TICK


def test_images_of_many_running_sessions_take_one_part_in_a_hundred(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk, clock, written = office(tmp_path), [100.0], Counter[str]()
    write = Journal._write

    def timed(self: Journal, session: Session, **more: Any) -> None:
        write(self, session, **more)
        clock[0] += IMAGE
        written[session.name] += 1

    with monkeypatch.context() as patch:
        journal = running(desk, patch, clock)
        patch.setattr(Journal, "_write", timed)
        attend(desk, journal, clock, 5000)
    passed = clock[0] - 100.0
    assert 0.8 * passed / 100 < written.total() * IMAGE <= passed / 100 + IMAGE
    assert max(written.values()) - min(written.values()) <= 1
    assert written.keys() == set(NAMES)
    forget(desk)


def test_a_running_session_whose_image_is_refused_leaves_the_others_their_turns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk, clock, asked = office(tmp_path), [100.0], Counter[str]()
    image = Journal._image

    def refused(self: Journal, session: Session, account: Any) -> Any:
        asked[session.name] += 1
        if session.name == "a":
            raise CheckpointRefused("It holds a value of an unknown kind.")
        return image(self, session, account)

    with monkeypatch.context() as patch:
        journal = running(desk, patch, clock)
        patch.setattr(Journal, "_image", refused)
        attend(desk, journal, clock, 2000)
        assert journal.unkept == {"a"}
    assert min(asked[name] for name in NAMES) >= 4  # in two seconds
    forget(desk)
