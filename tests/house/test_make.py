"""`make test` runs all of its stages, and fails where one of them did or left no report."""

from __future__ import annotations

import itertools
import os
import re
import subprocess
import sys
from pathlib import Path

from _pytest.mark.expression import Expression

from tests.house.repository import ROOT

TOGETHER = ("check", "chromium", "sidebar")  # two at a time
STAGES = ("fast", "processes", "alone", "one-colab", "one-quantized", "one-hub", "one-cluster")  # one after the other
TESTED = ("fast", "sidebar", "processes", "alone", "colab", "quantized", "hub", "cluster")
REPORT = '<testsuites><testsuite tests="3" failures="{failures}" errors="0" skipped="1"/></testsuites>'
PASSED = REPORT.format(failures=0)


def made(folder: Path, reports: dict[str, str], status: int) -> tuple[int, str, list[list[str]]]:
    """Run `make test` with stages that write these reports and end with this status. Return the status, the last line
    and what make was asked for the stages, call by call."""
    for name, text in reports.items():
        (folder / f"{name}.written").write_text(text)
    stages = folder / "stages"
    stages.write_text(
        f"#!/bin/sh\necho $* >> {folder}/asked\n"
        f"for one in {folder}/*.written; do [ ! -e $one ] || mv $one ${{one%.written}}.xml; done\nexit {status}\n"
    )
    stages.chmod(0o700)
    ours = (f"MAKE={stages}", f"REPORTS={folder}", f"BIN={Path(sys.executable).parent}")
    outer = {name: value for name, value in os.environ.items() if name not in ("MAKEFLAGS", "MFLAGS", "MAKELEVEL")}
    ran = subprocess.run(
        ["make", "--assume-old=.venv/.set-up", "test", *ours],
        cwd=ROOT,
        env=outer,
        capture_output=True,
        text=True,
        check=False,
    )
    asked = [call.split() for call in (folder / "asked").read_text().splitlines()]
    return ran.returncode, ran.stdout.splitlines()[-1], asked


def test_every_stage_is_run_also_after_one_that_fails(tmp_path: Path) -> None:
    status, said, asked = made(tmp_path, dict.fromkeys(TESTED, PASSED), 0)
    assert (status, said) == (0, "16 passed, 0 failed, 8 skipped")
    for call, stages in zip(asked, (TOGETHER, STAGES), strict=True):
        assert "--keep-going" in call
        assert tuple(call[-len(stages) :]) == stages


def test_a_stage_that_fails_fails_the_run_whose_sum_is_told(tmp_path: Path) -> None:
    status, said, _ = made(tmp_path, {**dict.fromkeys(TESTED, PASSED), "fast": REPORT.format(failures=1)}, 2)
    assert (status > 0, said) == (True, "15 passed, 1 failed, 8 skipped")


def test_checks_that_fail_fail_the_run_though_all_tests_passed(tmp_path: Path) -> None:
    status, said, _ = made(tmp_path, dict.fromkeys(TESTED, PASSED), 2)
    assert (status > 0, said) == (True, "16 passed, 0 failed, 8 skipped")


def test_a_stage_without_a_report_is_named_and_the_report_of_a_run_before_is_not_counted(tmp_path: Path) -> None:
    (tmp_path / "alone.xml").write_text(PASSED)
    status, said, _ = made(tmp_path, {name: PASSED for name in TESTED if name != "alone"}, 0)
    assert (status > 0, said) == (True, "14 passed, 0 failed, 7 skipped, alone has no report")


MARKS = ("processes", "alone", "slow")


def test_every_test_is_run_by_one_stage_and_a_slow_one_by_none() -> None:
    """But for the two that are named, with a real JupyterHub and a real cluster."""
    recipes = {stage: (ROOT / "Makefile").read_text().partition(f"\n{stage}: setup\n")[2] for stage in TESTED}
    chosen = {stage: re.search(r"-m '(.+?)'", recipes[stage]) for stage in ("fast", "processes", "alone")}
    stages = {stage: Expression.compile(found[1]) for stage, found in chosen.items() if found}
    for given in itertools.product((False, True), repeat=len(MARKS)):
        marks = {name for name, has in zip(MARKS, given, strict=True) if has}
        ran = [stage for stage, wants in stages.items() if fits(wants, marks)]
        assert len(ran) == ("slow" not in marks), (marks, ran)


def test_a_stage_reads_every_file_whose_tests_it_runs() -> None:
    """`processes` and `alone` are given the files in which the mark stands; but for these the folder of the browser."""
    others = [path for path in (ROOT / "tests").rglob("*.py") if not path.name.startswith("test_")]
    marking = [path for path in others if re.search(r"mark\.(processes|alone)\b", path.read_text())]
    assert marking == [ROOT / "tests" / "browser" / "conftest.py"]


def test_an_environment_beside_sees_what_is_editable(tmp_path: Path) -> None:
    rule, ours = f"beside:\n\t$(call environment,{tmp_path}/beside)", f"BIN={Path(sys.executable).parent}"
    subprocess.run(["make", "--silent", "--eval", rule, "beside", ours], cwd=ROOT, check=True)
    clean = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    asked = [tmp_path / "beside" / "bin" / "python", "-c", "import djinn_jupyter as ours; print(ours.__file__)"]
    said = subprocess.run(asked, cwd=tmp_path, env=clean, capture_output=True, text=True, check=True).stdout
    assert Path(said.strip()).parent.name == "djinn_jupyter"


def fits(wants: Expression, marks: set[str]) -> bool:
    return wants.evaluate(lambda name, /, **_: name in marks)
