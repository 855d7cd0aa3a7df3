"""`python -m djinn_evaluation.benchmarks limits`: how fast a sweep by `patching` could be at most, on this machine.

Counts the multiplications of the rows that any sweep has to compute, and measures the most of them that the model's own
layer reaches here in a second, at any number of rows, multiplied as those of a sweep are
(`engine/passes/epilogue.py`). What a sweep cannot do faster are these rows, and the two lines of a pair alone.
Of many pairs it is one line alone, for the rows of the other run among those of cells. A fast sweep also owes the cells
that it computes again alone, at the rate of one line's rows in plain PyTorch: with them the limit is lower.
TransformerLens's times are those of `results/patching.json`, so both are measured right after one another.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from time import thread_time
from typing import Any

import torch
from transformers import GPT2Config, GPT2LMHeadModel

from djinn_evaluation.benchmarks import harness
from djinn_evaluation.benchmarks.harness import GPT2, Figure, Result, Setting, Shape, Spread, at_least
from djinn_evaluation.benchmarks.patching import CASES, PAIRS, POSITIONS, THEIRS, Case
from djinn_jupyter.engine.passes.epilogue import ManyRows
from djinn_jupyter.methods.sweep.engine.sweep import RECHECKED

ROWS = (16, 77, 115, 230, 285, 400, 600, 1024)
ROUNDS = 7
ROW = 12  # multiplications of a row in a layer, by the square of the width: 3 for q, k and v, 1 behind attention, 8
ENTRY, BEHIND = 3, 9
ALONE = "one line alone"


def lines(case: Case, first: int, shape: Shape) -> Iterator[tuple[int, int, int]]:
    """Yield the lines of a pair's sweep: how many, the layer at which they join, and their rows."""
    if case.site == "z":
        yield from ((shape.heads, layer, POSITIONS - first) for layer in range(shape.layers))
    else:
        for layer in range(1, shape.layers):
            yield from ((1, layer, POSITIONS - start) for start in range(first, POSITIONS))


def ours(case: Case, first: int, shape: Shape) -> int:
    """Return the multiplications by weights that the lines of one pair need: of the layer inside which they join what
    is behind attention, of the last layer keys and values, and the last row; where there are many pairs, also those of
    the line that cells are patched from."""
    found = (POSITIONS - first) * ROW * shape.layers * shape.width**2 if case.many else 0
    for count, joined, rows in lines(case, first, shape):
        last = shape.layers - 1
        inside = BEHIND - ROW if case.site == "z" else 0
        if joined == last and case.site == "z":
            of_line = BEHIND
        else:
            of_line = rows * (ROW * (last - joined) + inside) + (rows - 1) * ENTRY + ROW
        found += count * of_line * shape.width**2
    return found


def alone(case: Case, first: int, shape: Shape) -> float:
    """Return the mean multiplications of a cell computed again alone, all rows through all layers from its own."""
    inside = ROW - BEHIND if case.site == "z" else 0
    cells = [(count, ROW * (shape.layers - joined) - inside) for count, joined, _ in lines(case, first, shape)]
    mean = sum(count * in_layers for count, in_layers in cells) / sum(count for count, _ in cells)
    return POSITIONS * mean * shape.width**2


def theirs(case: Case, shape: Shape) -> int:
    """Return those of a loop of whole forwards with logits of all positions, for one pair."""
    cells = shape.layers * (shape.heads if case.site == "z" else POSITIONS)
    return cells * POSITIONS * (ROW * shape.layers * shape.width**2 + shape.width * shape.vocabulary)


def seconds_of(work: Callable[[], Any]) -> Spread:
    """Return the CPU seconds of this thread; the first time is not kept."""
    found = []
    for _ in range(ROUNDS + 1):
        begun = thread_time()
        work()
        found.append(thread_time() - begun)
    spread = Spread.of(found[1:])
    assert spread is not None
    return spread


@torch.inference_mode()
def rates(model: Any, shape: Shape) -> dict[str, Spread]:
    """Return the multiplications a second, in 1e9, of a layer over as many rows as there are numbers in ROWS."""
    layer, many = model.transformer.h[shape.layers // 2], ManyRows(model)

    def rate(rows: int, among_others: AbstractContextManager[object]) -> Spread:
        with among_others:
            taken = seconds_of(partial(layer, torch.randn(1, rows, shape.width)))
        count = ROW * shape.width**2 * rows / 1e9
        return Spread(median=count / taken.median, low=count / taken.high, high=count / taken.low, count=taken.count)

    among_others = {f"{rows} rows": rate(rows, many.multiplied(rows)) for rows in ROWS}
    return {ALONE: rate(POSITIONS, nullcontext()), **among_others}


@torch.inference_mode()
def line_seconds(model: Any, shape: Shape) -> Spread:
    """Return the seconds of one line by itself, with the logits of its last position."""
    tokens = torch.randint(shape.vocabulary, (1, POSITIONS))
    return seconds_of(lambda: model(tokens, logits_to_keep=1))


def figures(shape: Shape, measured: dict[str, Any]) -> Iterator[Figure]:
    torch.manual_seed(shape.seed)
    model = GPT2LMHeadModel(GPT2Config()).eval()
    reached, line = rates(model, shape), line_seconds(model, shape)
    best = max(spread.median for spread in reached.values())
    yield Figure(
        name="a layer's multiplications a second, at the best number of rows",
        unit="1e9",
        value=max(reached.values(), key=lambda spread: spread.median),
        sides=reached,
        sides_unit="1e9",
    )
    by_name = {figure["name"]: figure for figure in measured["figures"]}
    for case in CASES:
        pairs = PAIRS if case.many else 1
        for first, bar in case.bars.items():
            name = f"sweep of {case.named(first)}, of {THEIRS}"
            loop = by_name[name]["sides"][THEIRS]["median"] / pairs
            needed, again = ours(case, first, shape) / 1e9, alone(case, first, shape) / 1e9
            least = needed / best + (1 if case.many else 2) * line.median
            cells = (RECHECKED + pairs - 1) / pairs
            owed = least + cells * again / reached[ALONE].median
            yield Figure(
                name=f"limit of a {name}",
                unit="x",
                value=Spread.of([loop / least]),
                bar=at_least(bar),
                sides={
                    "1e9 multiplications, ours": Spread.of([needed]),
                    "1e9 multiplications, theirs": Spread.of([theirs(case, shape) / 1e9]),
                    "least CPU seconds, ours": Spread.of([least]),
                    "CPU seconds, theirs": Spread.of([loop]),
                },
            )
            yield Figure(
                name=f"limit of a {name}, with its recheck",
                unit="x",
                value=Spread.of([loop / owed]),
                bar=at_least(bar),
                sides={
                    "cells computed again": Spread.of([cells]),
                    "1e9 multiplications of each": Spread.of([again]),
                    "least CPU seconds, ours": Spread.of([owed]),
                },
            )


def run_limits(setting: Setting) -> Result:
    torch.set_num_threads(setting.threads)
    measured = json.loads((harness.usual() / "patching.json").read_text())
    settings = {"shape": GPT2, "positions": POSITIONS, "pairs": PAIRS, "rounds": ROUNDS}
    return Result(benchmark="limits", settings=settings, figures=tuple(figures(GPT2, measured)))
