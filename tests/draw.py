"""What a run has of a test with many cases: those that its commit draws, the same in all its processes. `make families`
has all of them."""

from __future__ import annotations

import functools
import subprocess
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any
from zlib import crc32

import pytest

CASES = 4  # of a test with the mark `drawn`, or a third of its cases


@functools.cache
def commit() -> str:
    """Return the commit of the checkout; "" outside of one."""
    git = ["git", "-C", str(Path(__file__).parent), "rev-parse", "HEAD"]
    return subprocess.run(git, capture_output=True, text=True, check=False).stdout.strip()


def leave_out(items: Iterable[pytest.Item]) -> None:
    """Mark as slow the cases that are not drawn. Tests of one file whose cases have the same names keep the same ones,
    so that what a module makes for a case is made for few."""
    by_test: dict[str, list[Any]] = defaultdict(list)
    for item in items:
        if item.get_closest_marker("drawn") and not item.get_closest_marker("slow"):
            by_test[item.nodeid.partition("[")[0]].append(item)
    for cases in by_test.values():
        cases.sort(key=lambda case: crc32(f"{commit()} {case.name.partition('[')[2]}".encode()))
        for case in cases[max(CASES, len(cases) // 3) :]:
            case.add_marker(pytest.mark.slow)
