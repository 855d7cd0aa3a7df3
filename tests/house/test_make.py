"""`make test` runs all of its stages, and fails where one of them did or left no report."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.house.repository import ROOT

STAGES = ("check", "chromium", "fast", "sidebar", "alone")
TESTED = ("fast", "sidebar", "alone")
REPORT = '<testsuites><testsuite tests="3" failures="{failures}" errors="0" skipped="1"/></testsuites>'
PASSED = REPORT.format(failures=0)


def made(folder: Path, reports: dict[str, str], status: int) -> tuple[int, str, list[str]]:
    """Run `make test` with stages that write these reports and end with this status. Return the status, the last line
    and what make was asked for the stages."""
    for name, text in reports.items():
        (folder / f"{name}.written").write_text(text)
    stages = folder / "stages"
    stages.write_text(
        f"#!/bin/sh\necho $* > {folder}/asked\n"
        f"for one in {folder}/*.written; do mv $one ${{one%.written}}.xml; done\nexit {status}\n"
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
    return ran.returncode, ran.stdout.splitlines()[-1], (folder / "asked").read_text().split()


def test_every_stage_is_run_also_after_one_that_fails(tmp_path: Path) -> None:
    status, said, asked = made(tmp_path, dict.fromkeys(TESTED, PASSED), 0)
    assert (status, said) == (0, "6 passed, 0 failed, 3 skipped")
    assert "--keep-going" in asked
    assert asked[-len(STAGES) :] == list(STAGES)


def test_a_stage_that_fails_fails_the_run_whose_sum_is_told(tmp_path: Path) -> None:
    status, said, _ = made(tmp_path, {**dict.fromkeys(TESTED, PASSED), "fast": REPORT.format(failures=1)}, 2)
    assert (status > 0, said) == (True, "5 passed, 1 failed, 3 skipped")


def test_checks_that_fail_fail_the_run_though_all_tests_passed(tmp_path: Path) -> None:
    status, said, _ = made(tmp_path, dict.fromkeys(TESTED, PASSED), 2)
    assert (status > 0, said) == (True, "6 passed, 0 failed, 3 skipped")


def test_a_stage_without_a_report_is_named_and_the_report_of_a_run_before_is_not_counted(tmp_path: Path) -> None:
    (tmp_path / "alone.xml").write_text(PASSED)
    status, said, _ = made(tmp_path, {"fast": PASSED, "sidebar": PASSED}, 0)
    assert (status > 0, said) == (True, "4 passed, 0 failed, 2 skipped, alone has no report")
