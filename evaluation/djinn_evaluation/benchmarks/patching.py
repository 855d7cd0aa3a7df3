"""Sweeps of activation patching by one request, in mode `fast`: one pair of lines and many, lines that differ late, and
heads, against TransformerLens's own patching function with all pairs in its batch; and paths from every head. CPU
seconds (on a GPU, seconds of the wall clock), in turns."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

import numpy as np

import djinn_jupyter as dj
from djinn_evaluation.baselines.asking import BaselineFailed
from djinn_evaluation.benchmarks.environments import TOOLS, NotRun, python_of
from djinn_evaluation.benchmarks.measuring import Spread, take_turns
from djinn_evaluation.benchmarks.processes import Clock, clock_of
from djinn_evaluation.benchmarks.results import Checks, Disagreement, Figure, Result, at_least, at_most
from djinn_evaluation.benchmarks.serving_engine import engine_of, pid_of
from djinn_evaluation.benchmarks.setting import Setting, Shape
from djinn_evaluation.benchmarks.worker import Worker, worker
from djinn_evaluation.intervals import ratios
from djinn_evaluation.serving import random_tokens
from djinn_jupyter.api.engine import RemoteEngine
from djinn_jupyter.methods.sweep.api.grid import Grid

POSITIONS, LATE = 16, 10
PAIRS, PAIRS_IF_QUICK = 20, 2
ROUNDS, ROUNDS_OF_PAIRS = 3, 1  # twenty pairs take TransformerLens minutes,
PART = 4  # so its loop over them, whose cells all cost the same, is timed at every fourth layer
METRIC, MEASURED = "logit(3)", 3
TOLERANCE = 1e-2  # between logits of tools that do not promise the same bits
SENDER_SECONDS = 2.0
THEIRS = "transformer_lens"


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A site to patch, and its axes. `bars` are by the position from which on the lines of a pair differ."""

    name: str
    site: str
    over: tuple[str, ...]
    bars: dict[int, float]
    many: bool = False

    @property
    def rounds(self) -> int:
        return ROUNDS_OF_PAIRS if self.many else ROUNDS

    def named(self, first: int) -> str:
        return self.name if first == 0 else f"{self.name}, the same up to position {first}"

    def lines(self, first: int, shape: Shape, *, quick: bool) -> dict[str, list[list[int]]]:
        """Return the clean and the corrupted lines, of random tokens, which differ from `first` on."""
        pairs = range((PAIRS_IF_QUICK if quick else PAIRS) if self.many else 1)
        clean, other = ([random_tokens(POSITIONS, shape.vocabulary, at + n) for n in pairs] for at in (1, 101))
        corrupted = [one[:first] + two[first:] for one, two in zip(clean, other, strict=True)]
        return {"clean": clean, "corrupted": corrupted}


RESIDUALS, HEADS = ("resid_post", ("layer", "position")), ("z", ("layer", "head"))
CASES = tuple(
    Case(name=name, site=site, over=over, many=many, bars=bars)
    for name, (site, over), many, bars in (
        ("residuals of one pair", RESIDUALS, False, {0: 12.0, LATE: 25.0}),
        ("heads of one pair", HEADS, False, {0: 8.0, LATE: 16.0}),
        ("residuals of many pairs", RESIDUALS, True, {0: 8.0, LATE: 25.0}),
    )
)


def run(setting: Setting) -> Result:
    shape, checks = setting.shape(), Checks()
    figures: list[Figure] = []
    with worker("plain") as plain:
        folder = setting.saved(plain, shape)
    with _transformer_lens(folder, setting) as theirs, engine_of(folder, setting) as engine:
        clock = clock_of(pid_of(engine), os.getpid())
        for receivers in ("logits", f"q.{shape.layers - 1}[0], k.{shape.layers - 1}[0]"):
            figures.append(_senders(engine, receivers, shape, clock, setting, checks))
            setting.so_far(figures, f"up to paths into {receivers}")
        for case in CASES:
            figures += _measured(case, engine, theirs, shape, clock, setting, checks)
            setting.so_far(figures, f"up to {case.name}")
    settings = {
        "shape": shape,
        "positions": POSITIONS,
        "pairs": PAIRS_IF_QUICK if setting.quick else PAIRS,
        "rounds": setting.rounds(ROUNDS),
        "rounds_of_pairs": ROUNDS_OF_PAIRS,
        "layers_at_which_their_loop_over_pairs_is_timed": f"one of {PART}",
        "versions": {THEIRS: TOOLS[THEIRS]},
    }
    return Result(benchmark="patching", settings=settings, figures=tuple(figures), checks=checks.counts)


@contextmanager
def _transformer_lens(folder: str, setting: Setting) -> Iterator[Worker | str]:
    """Start TransformerLens; a reason stands in its place where it cannot be installed or started."""
    with ExitStack() as stack:
        started: Worker | str
        try:
            asked = stack.enter_context(worker(f"with_{THEIRS}", python_of(THEIRS)))
            asked.ask("load", folder=folder, shape={}, threads=setting.threads)
            started = asked
        except (NotRun, BaselineFailed) as why:
            started = str(why)
        yield started


def _measured(
    case: Case, engine: RemoteEngine, theirs: Worker | str, shape: Shape, clock: Clock, setting: Setting, checks: Checks
) -> list[Figure]:
    """Measure our sweep of lines that differ from each position on, and their loop, once a round: it computes the same
    whatever the tokens are."""
    lines = {first: case.lines(first, shape, quick=setting.quick) for first in case.bars}
    found = dict[int | str, np.ndarray]()

    def ours(first: int) -> Callable[[], float]:
        return lambda: clock.of(lambda: found.update({first: _swept(case, engine, lines[first], checks)}))

    sides = {case.named(first): ours(first) for first in case.bars}
    if not isinstance(theirs, str):
        sides[THEIRS] = _theirs(case, theirs, lines[0], found)
    readings = take_turns(sides, rounds=setting.rounds(case.rounds), warm_up=0)
    _check(case, engine, shape, lines, found, checks)
    not_run, loop = (theirs, []) if isinstance(theirs, str) else (None, readings[THEIRS])
    return [
        Figure(
            name=f"sweep of {case.named(first)}, of {THEIRS}",
            unit="x",
            value=Spread.of(ratios(loop, readings[case.named(first)][: len(loop)])),
            bar=at_least(bar),
            sides={case.named(first): Spread.of(readings[case.named(first)]), THEIRS: Spread.of(loop)},
            sides_unit=clock.unit,
            not_run=not_run,
        )
        for first, bar in case.bars.items()
    ]


def _theirs(
    case: Case, theirs: Worker, lines: dict[str, list[list[int]]], found: dict[int | str, np.ndarray]
) -> Callable[[], float]:
    clock = clock_of(theirs.pid)

    def patch() -> None:
        asked = {"site": case.site, "token": MEASURED, "every": PART if case.many else 1}
        found[THEIRS] = np.array(theirs.ask("patch", **asked, **lines)["values"])

    return lambda: clock.of(patch) * (PART if case.many else 1)


def _check(
    case: Case,
    engine: RemoteEngine,
    shape: Shape,
    lines: dict[int, dict[str, list[list[int]]]],
    found: dict[int | str, np.ndarray],
    checks: Checks,
) -> None:
    """Compare what was swept with what they found, and the first pair of what they did not run with exact cells."""
    for first, swept in found.items():
        if first == THEIRS:
            mine = found[0].reshape(found[0].shape[0], shape.layers, -1)[:, :: PART if case.many else 1]
            require_near(case.name, mine.reshape(swept.shape), swept)
        elif first != 0:
            pair = {side: given[0] for side, given in lines[int(first)].items()}
            exact = dj.sweep(engine, site=case.site, over=case.over, metric=METRIC, mode="exact", **pair)
            require_near(case.named(int(first)), swept[0], exact.values.reshape(-1))
        checks.same(f"cells of {case.name} within {TOLERANCE}", swept.shape[0], len(lines[0]["clean"]))


def _swept(case: Case, engine: RemoteEngine, lines: dict[str, list[list[int]]], checks: Checks) -> np.ndarray:
    """Return the metric of every cell, a row for each pair."""
    grid = dj.sweep(engine, site=case.site, over=case.over, metric=METRIC, mode="fast", **lines)
    require_fast(grid, checks)
    return grid.values.reshape(len(lines["clean"]), -1)


def _senders(
    engine: RemoteEngine, receivers: str, shape: Shape, clock: Clock, setting: Setting, checks: Checks
) -> Figure:
    """Measure the paths from every head into these receivers; compare those from one layer with exact ones."""
    clean, corrupted = (random_tokens(POSITIONS, shape.vocabulary, seed) for seed in (1, 2))
    found: list[Grid] = []

    def ours() -> float:
        lines = {"clean": clean, "corrupted": corrupted}
        return clock.of(lambda: found.append(dj.path(engine, f"z -> {receivers}", metric=METRIC, **lines)))

    readings = take_turns({"djinn": ours}, rounds=setting.rounds(ROUNDS))
    require_fast(found[-1], checks)
    layer = shape.layers // 2
    exact = dj.path(engine, f"z.{layer} -> {receivers}", clean=clean, corrupted=corrupted, metric=METRIC, mode="exact")
    require_near(f"paths into {receivers}", found[-1].values[layer], exact.values)
    checks.same(f"paths from a layer into {receivers} within {TOLERANCE}", exact.values.shape, (shape.heads,))
    count = shape.layers * shape.heads
    return Figure(
        name=f"paths from all {count} heads into {receivers}",
        unit=clock.unit,
        value=Spread.of(readings["djinn"]),
        bar=at_most(SENDER_SECONDS),
    )


def require_fast(grid: Grid, checks: Checks) -> None:
    """Require that no pair was swept cell by cell in place of together."""
    checks.same("sweeps in mode fast", {one.mode for one in grid.replies}, {"fast"})


def require_near(what: str, ours: np.ndarray, theirs: np.ndarray) -> None:
    """Require that no cell differs by more than TOLERANCE. Raises Disagreement."""
    far = float(np.abs(ours - theirs).max())
    if not far <= TOLERANCE:
        raise Disagreement(f"The {what}: a cell is {far:.2g} away from the other side's.")
