"""The rows that limits are reckoned from are those that sweeps run."""

from __future__ import annotations

from typing import Any

import pytest

from djinn_evaluation.benchmarks import limits
from djinn_evaluation.benchmarks.harness import Shape
from djinn_evaluation.benchmarks.patching import CASES, LATE, POSITIONS, Case
from djinn_jupyter.methods.sweep.engine.sweep import Sweeping
from djinn_jupyter.methods.sweep.request import Sweep
from tests.engine.desk import desk_of, tokens

LAYERS, HEADS = 4, 4


@pytest.mark.parametrize("first", [0, LATE])
@pytest.mark.parametrize("case", CASES[:2], ids=lambda case: case.site)
def test_a_sweep_runs_the_rows_that_are_counted(case: Case, first: int, monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[int] = []
    whole = Sweeping._run_chunk

    def counted(self: Any, room: Any, front: Any, lines: Any, found: Any) -> Any:
        yield from whole(self, room, front, lines, found)
        ran.append(front.rows_run)

    monkeypatch.setattr(Sweeping, "_run_chunk", counted)
    desk, clean = desk_of("gpt2", layers=LAYERS), tuple(range(20, 20 + POSITIONS))
    corrupted = (*clean[:first], *tokens(POSITIONS, seed=2)[first:])
    desk.open("a")
    asked: Any = {"site": case.site, "over": case.over, "metrics": ("logit(3)",)}
    desk.ask(Sweep(session="a", clean=clean, corrupted=corrupted, **asked))
    expected = limits.lines(case, first, Shape(layers=LAYERS, heads=HEADS))
    assert ran[-1] == sum(count * (LAYERS - joined) * rows for count, joined, rows in expected)
    desk.close_all()


def test_multiplications_are_those_of_the_weights() -> None:
    residuals, heads, _ = CASES
    shape = Shape(layers=2, width=10, heads=3, vocabulary=100)
    rows = range(1, POSITIONS + 1)  # of the lines that join before the last layer, whose last rows alone pass it
    assert limits.ours(residuals, 0, shape) == sum(3 * (n - 1) + 12 for n in rows) * 100
    assert limits.ours(heads, 0, shape) == 3 * (POSITIONS * 9 + (POSITIONS - 1) * 3 + 12 + 9) * 100
    assert limits.theirs(residuals, shape) == 2 * POSITIONS * POSITIONS * (2 * 12 * 100 + 10 * 100)


def test_a_cell_alone_runs_all_rows_from_its_layer_on() -> None:
    residuals, heads, _ = CASES
    shape = Shape(layers=2, width=10, heads=3, vocabulary=100)
    assert limits.alone(residuals, 0, shape) == POSITIONS * 12 * 100  # of the layer after the first
    assert limits.alone(heads, 0, shape) == POSITIONS * (12 + 9 + 9) / 2 * 100
