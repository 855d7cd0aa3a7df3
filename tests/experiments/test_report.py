"""A report holds what the files hold, and names what is missing with its reason."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from djinn_jupyter.errors import DjinnError
from djinn_jupyter.experiments import report
from djinn_jupyter.experiments.course import Course, TimeIsUp, Unmeasured, begin, conducted
from djinn_jupyter.experiments.report import figures


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


def broken_off_by(course: Course, error: BaseException) -> dict[str, Any]:
    """The file that the run was at; another one was whole by then."""

    def work(course: Course) -> list[str]:
        course.write("whole.json", {"status": "success"})
        course.write_partial("found.json", ("figure", "other"), {"figure": 1})
        raise error

    with pytest.raises(type(error)):
        conducted(course, work, lambda course, failures: report.write(course, "whitebox", failures))
    assert json.loads((course.folder / "whole.json").read_text()) == {"status": "success"}
    found: dict[str, Any] = json.loads((course.folder / "found.json").read_text())
    assert (found["figure"], found["other"]) == (1, None)
    assert "other" in found["reasons"]
    return found


def test_a_run_that_is_broken_off_leaves_its_files_marked(course: Course) -> None:
    found = broken_off_by(course, KeyboardInterrupt())
    assert (found["status"], found["interrupted"]) == ("partial", True)
    assert "Broken off" in (course.folder / "run.log").read_text()
    assert "# whitebox: BROKEN OFF" in (course.folder / "report.md").read_text()


def test_a_run_that_ends_by_an_error_names_it(course: Course) -> None:
    found = broken_off_by(course, DjinnError("It did not work."))
    assert (found["status"], found["error"]) == ("error", "It did not work.")
    assert "It did not work." in (course.folder / "report.html").read_text()


def test_the_time_limit_is_hard(course: Course) -> None:
    course.limit_seconds = 0.0
    with pytest.raises(TimeIsUp, match="duration") as caught:
        course.check_time()
    assert isinstance(caught.value, DjinnError)


def test_what_is_calculated_comes_first_and_sides_stand_side_by_side(course: Course) -> None:
    table = {"breakpoint_support": {"pytorch_eager": True, "vllm": None, "djinn": True}}
    course.write("comparative_results.json", {"summary_table": table})
    course.write("memory.json", {"arithmetic": ["Weights 1 GiB."], "demand_gb": 2.0})
    report.write(course, "whitebox", [])
    text, page = (course.folder / "report.md").read_text(), (course.folder / "report.html").read_text()
    assert text.index("Weights 1 GiB.") < text.index("comparative_results.json")
    assert "| breakpoint_support | yes | not measured | yes |" in text
    assert "<td>breakpoint_support</td><td>yes</td><td>not measured</td><td>yes</td>" in page


def test_latencies_are_one_plot_with_the_limit_of_plain_computing(course: Course) -> None:
    for name, median in (("recompute", 80.0), ("djinn_resume", 50.0)):
        rows = [{"layer": layer, "resume_latency_median_ms": median} for layer in (1, 5)]
        course.write(f"{name}_latency.json", {"results": rows, "metadata": {"num_layers": 8}})
    report.write(course, "resume-latency", [])
    page = (course.folder / "report.html").read_text()
    for written in (page, (course.folder / "report.md").read_text()):
        assert "Everything was." in written
    assert page.count("<svg") == 1
    assert "limit: the layers above alone" in page
    assert figures.latencies(course.written).count("stroke-dasharray") == 2
