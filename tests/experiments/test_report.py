"""A report holds what the files hold, and names what is missing with its reason."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from djinn_jupyter.errors import DjinnError
from djinn_jupyter.experiments import report
from djinn_jupyter.experiments.course import Course, TimeIsUp, Unmeasured, begin, concluded


@pytest.fixture
def course(tmp_path: Path) -> Course:
    return begin(tmp_path / "out", "run.log", terminal=False)


def test_a_field_that_was_not_measured_is_null_with_its_reason(course: Course) -> None:
    course.write("found.json", {"deep": {"gpu_gb": Unmeasured(reason="no GPU"), "cpu_gb": 1.5}})
    read = json.loads((course.folder / "found.json").read_text())
    assert read == {"deep": {"gpu_gb": None, "cpu_gb": 1.5}, "reasons": {"deep.gpu_gb": "no GPU"}}
    report.write(course, "whitebox", [])
    page, text = (course.folder / "report.html").read_text(), (course.folder / "report.md").read_text()
    assert "found.json: deep.gpu_gb" in page
    assert "- found.json: deep.gpu_gb: no GPU" in text
    assert "1.5" in page
    assert "PASS" in page


def test_the_page_needs_nothing_from_elsewhere(course: Course) -> None:
    course.write("a.json", {"neighbour_tokens_per_s": {"alone": 10.0, "with_stops": 9.0}})
    report.write(course, "checkpoint-cost", ["It failed & <so>."])
    page = (course.folder / "report.html").read_text()
    assert "It failed &amp; &lt;so&gt;." in page
    assert "<svg" in page
    assert not any(word in page for word in ("http://", "https://", "<script", "<link"))


def test_a_run_that_is_broken_off_leaves_its_files_marked(course: Course) -> None:
    course.write("found.json", {"figure": 1})
    with pytest.raises(KeyboardInterrupt), concluded(course):
        raise KeyboardInterrupt
    assert json.loads((course.folder / "found.json").read_text()) == {"figure": 1, "interrupted": True}
    assert "Broken off" in (course.folder / "run.log").read_text()


def test_the_time_limit_is_hard(course: Course) -> None:
    course.limit_seconds = 0.0
    with pytest.raises(TimeIsUp, match="duration") as caught:
        course.check_time()
    assert isinstance(caught.value, DjinnError)
