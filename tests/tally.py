"""Adds up the reports of the stages of `make test`, so that the last line gives the whole run's counts.

A stage that ended without a report is named and fails the run.
"""

from __future__ import annotations

import sys
from pathlib import Path
from xml.etree import ElementTree


def tally(reports: list[str]) -> tuple[int, int, int]:
    """Tests passed, failed (errors too) and skipped in these JUnit files."""
    suites = [suite for report in reports for suite in ElementTree.parse(report).iter("testsuite")]
    total, failed, errors, skipped = (
        sum(int(suite.get(key, "0")) for suite in suites) for key in ("tests", "failures", "errors", "skipped")
    )
    return total - failed - errors - skipped, failed + errors, skipped


if __name__ == "__main__":
    written = [report for report in sys.argv[1:] if Path(report).exists()]
    lost = [f"{Path(report).stem} has no report" for report in sys.argv[1:] if report not in written]
    passed, failed, skipped = tally(written)
    print(f"{passed} passed, {failed} failed, {skipped} skipped", *lost, sep=", ")
    sys.exit(bool(lost) or failed > 0 or passed == 0)
