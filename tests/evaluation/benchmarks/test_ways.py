"""The benchmark of the three ways of use: it counts what is typed, and both sides find the same."""

from __future__ import annotations

from pathlib import Path

import pytest

from djinn_evaluation.benchmarks import ways
from djinn_evaluation.benchmarks.harness import setting
from djinn_evaluation.benchmarks.ways import Typed, cells_of, played, typed


def test_lines_are_counted_without_empty_ones_and_helpers_are_functions() -> None:
    helper = "def one():\n    return 1\n\n\nfor at in range(2):\n    one()\n"
    cells = ["%load_ext djinn_jupyter\n\n%djinn_load demo\n", helper]
    assert typed(cells) == Typed(cells=2, lines=6, helper_lines=2)


@pytest.mark.parametrize("way", ways.FINDINGS)
def test_whoever_uses_djinn_writes_no_helpers(way: str) -> None:
    assert typed(cells_of(way, "djinn")).helper_lines == 0


@pytest.mark.processes
def test_both_sides_find_the_same() -> None:
    with setting(quick=True, threads=1, device="cpu") as own:
        try:
            found = {side: played("newcomer", side, Path(own.home, side))[1] for side in ways.SIDES}
        finally:
            ways.stop_engines()
    assert found == {"djinn": ["Oslo", "Paris"], "plain": ["Oslo", "Paris"]}
