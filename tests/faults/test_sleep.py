"""A fault of the sleep, planted in the engine: the agent leaves, and not because it sleeps."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest

from djinn_evaluation.configuration.reading import read
from djinn_evaluation.configuration.sections import ValidationFile
from djinn_evaluation.course import Course
from djinn_evaluation.link import Link
from djinn_evaluation.validation import sleep
from djinn_jupyter.engine.residency import eviction
from djinn_jupyter.engine.residency.eviction import Eviction
from tests.faults.inside import FASTEST, Inside

ANOTHER = "The agent left for another reason than its sleep."
SETTINGS = ("agent_sleep_resume.sleep_duration_seconds=1.0", "agent_sleep_resume.idle_threshold_seconds=0.2")


def failures_of_a_night(inside: Inside, folder: Path) -> list[str]:
    wanted = read("validation_small.yaml", ValidationFile, SETTINGS)
    course = Course(folder=folder, log=logging.getLogger("night"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sleep, "engine_for", inside.engine_for)
        patch.setattr(sleep, "options_of", lambda *_: {})
        patch.setattr(sleep, "measured_link", lambda *_: Link(copies=FASTEST["copies"]))
        patch.setattr(eviction, "WRITE_THROUGH_SECONDS", float("inf"))
        found: list[Any] = sleep.run(course, wanted, wanted.agent_sleep_resume)["failures"]
    return found


def test_an_agent_that_leaves_by_pressure_does_not_pass(
    inside: Inside, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert ANOTHER not in failures_of_a_night(inside, tmp_path)
    monkeypatch.setattr(Eviction, "_let_go", lambda self, session, *said: self._send_away(session, "pressure"))
    assert failures_of_a_night(inside, tmp_path) == [ANOTHER]
