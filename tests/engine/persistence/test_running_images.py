"""Images of running sessions take a part of the engine's time, and each session has its turn."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from djinn_jupyter.engine.persistence import journal as journals
from djinn_jupyter.engine.persistence.journal import Journal
from djinn_jupyter.engine.session.session import Session
from tests.engine.persistence.crashes import forget
from tests.engine.persistence.test_parting import office

TICK, IMAGE = 0.001, 0.002  # seconds of the clock below


def test_images_of_many_running_sessions_take_one_part_in_a_hundred(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk, now, written = office(tmp_path), [100.0], Counter[str]()
    journal, write = desk.engine.persistence.journal, Journal._write
    assert journal is not None

    def timed(self: Journal, session: Session, **more: Any) -> None:
        write(self, session, **more)
        now[0] += IMAGE
        written[session.name] += 1

    for name in "abcd":
        desk.open(name)
    with monkeypatch.context() as patch:
        patch.setattr(journals, "time", SimpleNamespace(monotonic=lambda: now[0]))
        patch.setattr(Journal, "_write", timed)
        for name in "abcd":
            patch.setattr(desk.session(name), "state", "running")
        for _ in range(5000):
            for name in "abcd":
                journal.touch(name)
            journal.attend(desk.engine.sessions)
            now[0] += TICK
    passed = now[0] - 100.0
    assert 0.8 * passed / 100 < written.total() * IMAGE <= passed / 100 + IMAGE
    assert max(written.values()) - min(written.values()) <= 1
    assert written.keys() == set("abcd")
    forget(desk)
