"""A report holds the content of the files, and names each missing part with its reason."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from djinn_evaluation import report
from djinn_evaluation.course import Course, TimeIsUp, Undecided, Unmeasured, begin, conducted
from djinn_jupyter.errors import DjinnError


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


def test_a_list_of_numbers_is_one_line_of_the_file(course: Course) -> None:
    """And what looks like one in a sentence stays as it is."""
    fields = {"copies": [[1, 2.5, None], [3, -1e-09, True]], "none": [], "said": "[\n 1,\n 2\n]", "names": ["a", "b"]}
    course.write("found.json", {"first": fields, "rows": [{"rates": [1, 2]}]})
    written = (course.folder / "found.json").read_text()
    assert json.loads(written) == {"first": fields, "rows": [{"rates": [1, 2]}]}
    lines = {line.strip(" ,") for line in written.splitlines()}
    assert {"[1, 2.5, null]", "[3, -1e-09, true]", '"rates": [1, 2]', '"none": []', '"a"'} <= lines


def test_the_page_needs_nothing_from_elsewhere(course: Course) -> None:
    course.write("a.json", {"neighbour_tokens_per_s": {"alone": 10.0, "with_stops": 9.0}})
    report.write(course, "checkpoint-cost", ["It failed & <so>."])
    page = (course.folder / "report.html").read_text()
    assert "It failed &amp; &lt;so&gt;." in page
    assert "<svg" in page
    assert not any(word in page for word in ("http://", "https://", "<script", "<link"))


def test_sides_of_a_streamed_model_are_drawn_beside_their_limit() -> None:
    sides = {"djinn": {"token_ms": {"median": 2.0}}, "accelerate_cpu_offload": {"status": "not_run", "reason": "no"}}
    found = {"model": "13B", "sides": sides, "limit": {"token_ms": {"median": 1.5}}, "of_both_at_once": {}}
    (plot,) = report.of_file({"models": [found]})
    assert "djinn: 2" in plot
    assert "accelerate" not in plot
    assert "max(compute, bytes / bandwidth)" in plot


@pytest.mark.parametrize("failures", [[], ["It is wrong."]])
def test_a_failure_counts_before_a_verdict_left_open(course: Course, failures: list[str]) -> None:
    """Without a failure it is reported and raised."""

    def work(course: Course) -> list[str]:
        course.write("found.json", {"status": "failed" if failures else "undecided"})
        course.undecided.append("The windows cannot be judged here.")
        return failures

    def run() -> list[str]:
        return conducted(course, work, lambda course, failures: report.write(course, "validation", failures))

    if failures:
        assert run() == failures
        begins = "# validation: FAIL\n\nIt is wrong."
    else:
        with pytest.raises(Undecided, match="cannot be judged"):
            run()
        begins = "# validation: UNDECIDED\n\nThe windows cannot be judged here."
    assert (course.folder / "report.md").read_text().startswith(begins)


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


def test_a_run_that_is_broken_off_leaves_its_files_marked(course: Course, tmp_path: Path) -> None:
    """One that ends by an error names it; the time limit is one that is hard."""
    found = broken_off_by(course, KeyboardInterrupt())
    assert (found["status"], found["interrupted"]) == ("partial", True)
    assert "Broken off" in (course.folder / "run.log").read_text()
    assert "# whitebox: BROKEN OFF" in (course.folder / "report.md").read_text()
    course.limit_seconds = 0.0
    with pytest.raises(TimeIsUp, match="duration"):
        course.check_time()
    course = begin(tmp_path / "wrong", "run.log", terminal=False)
    found = broken_off_by(course, DjinnError("It did not work."))
    assert (found["status"], found["error"]) == ("error", "It did not work.")
    assert "It did not work." in (course.folder / "report.html").read_text()


def test_what_is_calculated_comes_first_and_sides_stand_side_by_side(course: Course) -> None:
    table = {"breakpoint_support": {"pytorch_eager": True, "vllm": None, "djinn": True}}
    course.write("comparative_results.json", {"summary_table": table})
    course.write("memory.json", {"arithmetic": ["Weights 1 GiB."], "demand_gb": 2.0})
    report.write(course, "whitebox", [])
    text, page = (course.folder / "report.md").read_text(), (course.folder / "report.html").read_text()
    assert text.index("Weights 1 GiB.") < text.index("comparative_results.json")
    assert "| breakpoint_support | yes | not measured | yes |" in " ".join(text.split())
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
    assert report.latencies(course.written).count("stroke-dasharray") == 2


def test_the_limit_is_the_fastest_plain_pass(course: Course, monkeypatch: pytest.MonkeyPatch) -> None:
    """A whole pass does not depend on the layer; one that met a busy machine would draw a limit that others beat."""
    rows = [{"layer": layer, "resume_latency_median_ms": median} for layer, median in ((1, 80.0), (5, 40.0))]
    course.write("recompute_latency.json", {"results": rows, "metadata": {"num_layers": 8}})
    drawn: list[Any] = []
    monkeypatch.setattr(report, "bars", lambda groups, **options: drawn.append(options["limits"]) or "")
    report.latencies(course.written)
    assert drawn[0][1] == {"layer 1": 40.0 * 6 / 8, "layer 5": 40.0 * 2 / 8}


def test_time_begins_at_zero_and_every_mark_lies_within() -> None:
    drawn = report.lines({"a": [(0.2, 1.0), (2.0, 2.0)]}, x="seconds", y="GiB", marks={"swap": [0.1, 3.0]})
    marks = [float(place) for place in re.findall(r'd="M([\d.]+),[\d.]+v-7"', drawn)]
    assert len(marks) == 2
    assert all(report.LEFT <= mark <= report.WIDTH - report.RIGHT for mark in marks)
    assert (
        f'<text x="{float(report.LEFT)}" y="{report.HEIGHT - report.BOTTOM + 14}" text-anchor="middle">0</text>'
        in drawn
    )


@pytest.mark.parametrize("top", [1.2345e-5, 0.0045, 123456.0])
def test_the_longest_number_leaves_room_for_its_unit(top: float) -> None:
    """Eleven pixels high, a figure is at most 6.4 wide; the unit beside it lies within the first 18."""
    drawn = report.lines({"a": [(0.0, top), (1.0, top)]}, x="seconds", y="GiB")
    numbers = re.findall(r'<text x="([\d.]+)" y="[\d.]+" text-anchor="end">([^<]*)</text>', drawn)
    assert len(numbers) == 3
    assert all(float(right) - 6.4 * len(number) >= 18 for right, number in numbers)


def test_the_samples_of_a_pause_lie_where_they_were_taken() -> None:
    demo = {"vram_samples_gb": [1.0, 2.0, 2.0], "vram_samples_seconds": [0.0, 0.1, 1.0]}
    uneven = report.of_file({"concurrent_demo": demo})
    assert uneven != report.of_file({"concurrent_demo": {**demo, "vram_samples_seconds": [0.0, 0.5, 1.0]}})


def test_a_wide_table_comes_in_parts_that_fit_a_terminal(course: Course) -> None:
    entry = dict.fromkeys((*report.TRIAL, "checkpoint_copy_ms"), 123456.789) | {"trial": 1, "layer": 3}
    course.write("found.json", {"token_accuracy": {"entries": [entry] * 70}, "failures": ["It is long. " * 20]})
    report.write(course, "whitebox", ["It did not do what it was to do, and this takes a while to say. " * 3])
    written = (course.folder / "report.md").read_text().splitlines()
    assert max(map(len, written)) <= report.COLUMNS
    heads = [line for line in written if line.startswith("| trial | layer")]
    assert len(heads) > 1
    assert all(any(name in head for head in heads) for name in report.TRIAL)
    assert "### Token accuracy: the first 60 of 70 in the file" in written


def test_what_a_list_lacks_is_told_once(course: Course) -> None:
    rates = [{"ms": 1.0, "gb_per_s": Unmeasured(reason="nothing moved")} for _ in range(3)]
    course.write("found.json", {"swap_events": rates, "other": Unmeasured(reason="no GPU")})
    told = dict(report.unmeasured(course.written))
    assert told == {
        "found.json: swap_events[].gb_per_s": "nothing moved (3 times)",
        "found.json: other": "no GPU",
    }


def test_rows_are_named_in_every_part() -> None:
    found = report.parts(["layer", "kv", "a" * 50, "b" * 50], [["1", "host", "x", "y"], ["1", "disk", "z", "w"]])
    assert [[line.split() for line in part[2:]] for part in found] == [
        [["|", "1", "|", "host", "|", "x", "|"], ["|", "1", "|", "disk", "|", "z", "|"]],
        [["|", "1", "|", "host", "|", "y", "|"], ["|", "1", "|", "disk", "|", "w", "|"]],
    ]
