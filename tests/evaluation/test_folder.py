"""The folder of the results: one that cannot be, one that is full, one in which an earlier run left its files."""

from __future__ import annotations

import json
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import EntryPoint, EntryPoints
from pathlib import Path

import pytest

import djinn_jupyter.cli.main as cli
from djinn_evaluation import pressure, report
from djinn_evaluation.course import Course, begin, conducted
from djinn_jupyter.cli import commands
from djinn_jupyter.errors import StorageFailed, UsageError


@contextmanager
def a_disk_that_takes(limit: int) -> Iterator[None]:
    """Let no file become larger: the system itself refuses, as it does where a disk is full."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def course_in(folder: Path, *files: str) -> Course:
    return begin(folder, "run.log", terminal=False, files=files)


def failing(course: Course) -> list[str]:
    raise UsageError("It cannot be meant.")


def reported(course: Course, failures: list[str]) -> None:
    report.write(course, "whitebox", failures)


@pytest.mark.parametrize("place", ["taken", "taken/below", "/proc/nowhere"])
def test_a_folder_that_cannot_be_is_one_sentence(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("taken").touch()
    assert cli.main(["experiment", "pressure", "--profile", "small", "--output-dir", place]) == 1
    said = capsys.readouterr()
    assert said.err.startswith(f"djinn: {place} cannot be made a folder (")
    assert (said.err.count("\n"), said.out) == (1, "")


def test_a_file_that_cannot_be_written_is_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """No part of it is left; the log says once that it cannot be written either."""
    course = course_in(tmp_path)

    def work(course: Course) -> list[str]:
        course.write("small.json", {"status": "success"})
        with a_disk_that_takes(100):
            for _ in range(20):
                course.tell("a line of the log")
            course.write("large.json", {"numbers": list(range(1000))})
        return []

    with pytest.raises(StorageFailed, match=rf"large\.json cannot be written to {tmp_path}: File too large\."):
        conducted(course, work, reported)
    assert {file.name for file in tmp_path.glob("*.json")} == {"small.json"}
    assert not list(tmp_path.glob(".*"))
    assert capsys.readouterr().err.count("run.log cannot be written") == 1


def test_a_report_that_is_not_there_is_not_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(pressure, "run", lambda course, file: course.write("large.json", {"text": "x" * 1000}))
    with a_disk_that_takes(100):
        assert cli.main(["experiment", "pressure", "--profile", "small", "--output-dir", str(tmp_path)]) == 1
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.endswith(f"djinn: large.json cannot be written to {tmp_path}: File too large.\n")


def test_files_of_an_earlier_run_are_not_taken_for_those_of_this_one(tmp_path: Path) -> None:
    files = ("first.json", "second.json")
    earlier = course_in(tmp_path, *files)
    (tmp_path / "mine.json").write_text("{}")
    for name in files:
        earlier.write(name, {"run": 1})
    reported(earlier, [])
    later = course_in(tmp_path, *files)
    later.write_partial("first.json", (), {"run": 2})
    assert {file.name for file in tmp_path.iterdir()} == {"first.json", "mine.json", "run.log", "earlier"}
    aside = {file.name for file in (tmp_path / "earlier").iterdir()}
    assert aside == {*files, "report.html", "report.md"}
    assert json.loads((tmp_path / "earlier" / "first.json").read_text()) == {"run": 1}


def test_a_run_that_is_refused_leaves_an_earlier_one_alone(tmp_path: Path) -> None:
    earlier = course_in(tmp_path, "found.json")
    earlier.tell("the first run")
    earlier.write("found.json", {"run": 1})
    with pytest.raises(UsageError):
        conducted(course_in(tmp_path, "found.json"), failing, reported)
    assert json.loads((tmp_path / "found.json").read_text()) == {"run": 1}
    assert "the first run" in (tmp_path / "run.log").read_text()


def test_a_log_without_lines_takes_the_place_of_an_earlier_one(tmp_path: Path) -> None:
    (tmp_path / "run.log").write_text("of an earlier run")
    course_in(tmp_path).write("found.json", {})
    assert (tmp_path / "run.log").read_text() == ""


@pytest.mark.parametrize("content", [b"\xd0\x00", b"\xff"])
def test_a_configuration_that_is_no_text(content: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "binary.yaml").write_bytes(content)
    assert cli.main(["experiment", "whitebox", "--config", str(tmp_path / "binary.yaml")]) == 1
    assert "binary.yaml cannot be read as text" in capsys.readouterr().err


def test_a_run_never_takes_its_own_files_for_an_earlier_ones(tmp_path: Path) -> None:
    course = course_in(tmp_path, "only.json")
    course.write_partial("only.json", ("figure",), {})
    course.write("only.json", {"figure": 1})
    course.write("only.json", {"figure": 2})
    assert sorted(path.name for path in tmp_path.iterdir() if path.suffix != ".log") == ["only.json"]
    assert json.loads((tmp_path / "only.json").read_text()) == {"figure": 2}


@pytest.mark.parametrize(
    ("points", "said"),
    [
        ((), "`pip install ./evaluation`"),
        ((EntryPoint("experiment", "no_such_package", commands.GROUP),), "cannot be imported (No module named"),
    ],
)
def test_the_command_says_how_to_get_the_evaluation(
    points: tuple[EntryPoint, ...], said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(commands, "entry_points", lambda group: EntryPoints(points))
    assert cli.main(["experiment", "all", "--profile", "small"]) == 1
    assert said in capsys.readouterr().err
    assert cli.main(["list"]) == 0
