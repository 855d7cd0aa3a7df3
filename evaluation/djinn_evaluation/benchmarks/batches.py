"""32 continuations at once, in mode `fast`, against plain batched `generate`: samples of one prompt, and prompts of one
length and of 32 lengths. CPU seconds of the process that computes (on a GPU, seconds of the wall clock), in turns."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

from djinn_evaluation.benchmarks.measuring import Readings, take_turns
from djinn_evaluation.benchmarks.processes import Clock, clock_of
from djinn_evaluation.benchmarks.results import Checks, Figure, Result, at_least, compared
from djinn_evaluation.benchmarks.serving_engine import engine_of, pid_of
from djinn_evaluation.benchmarks.setting import Setting
from djinn_evaluation.benchmarks.worker import worker
from djinn_evaluation.serving import random_tokens
from djinn_jupyter.api.session import RemoteSession

ROWS, NEW, LENGTH, SHORTEST = 32, 20, 16, 4
ROUNDS = 7
BAR = 0.95
Passes = Counter[str]
Side = Callable[[], list[list[int]]]


def run(setting: Setting) -> Result:
    shape, checks = setting.shape(), Checks()
    rows = 4 if setting.quick else ROWS
    same = [random_tokens(LENGTH, shape.vocabulary, seed) for seed in range(rows)]
    ragged = [random_tokens(SHORTEST + i, shape.vocabulary, i) for i in range(rows)]
    figures: list[Figure] = []
    passes: Passes = Counter()
    with worker("plain") as plain:
        folder = setting.saved(plain, shape)
        with engine_of(folder, setting) as engine:
            session = engine.session("batches", fresh=True)
            clocks = {"plain": clock_of(plain.pid), "djinn": clock_of(pid_of(engine))}
            cases: dict[str, tuple[Side, Side]] = {
                f"{rows} samples of one prompt": (
                    lambda: plain.ask("sample_batched", tokens=same[0], new=NEW, rows=rows)["tokens"],
                    lambda: _rows(session, checks, passes, same[0], samples=rows, temperature=1.0),
                ),
                f"{rows} prompts of one length": (
                    lambda: plain.ask("generate_batched", prompts=same, new=NEW)["tokens"],
                    lambda: _rows(session, checks, passes, same),
                ),
                f"{rows} prompts of {rows} lengths": (
                    lambda: plain.ask("generate_batched", prompts=ragged, new=NEW)["tokens"],
                    lambda: _rows(session, checks, passes, ragged),
                ),
            }
            for name, (theirs, ours) in cases.items():
                figures.append(_measured(name, {"plain": theirs, "djinn": ours}, clocks, setting, figures, checks))
                setting.so_far(figures, f"up to {name}")
    # a row whose client had no turn comes late; where most passes were computed alone, nothing was measured
    checks.same("most passes were shared", 2 * passes["shared"] >= passes["all"], True)
    settings = {"shape": shape, "rows": rows, "new_tokens": NEW, "rounds": setting.rounds(ROUNDS)}
    return Result(benchmark="batches", settings=settings, figures=tuple(figures), checks=checks.counts)


def _rows(session: RemoteSession, checks: Checks, passes: Passes, prompt: Any, **options: Any) -> list[list[int]]:
    """Return the new tokens of all rows, and count their passes."""
    rows: list[Any] = session.run(prompt, max_new_tokens=NEW, ignore_eos=True, mode="fast", **options)
    checks.same("why rows share no passes", [row.note for row in rows], [None] * len(rows))
    for row in rows:
        passes.update(all=row.passes, shared=row.shared)
    return [list(row.tokens) for row in rows]


def _measured(
    name: str,
    sides: dict[str, Side],
    clocks: dict[str, Clock],
    setting: Setting,
    before: list[Figure],
    checks: Checks,
) -> Figure:
    made: dict[str, list[list[int]]] = {}

    def timed(side: str) -> float:
        return clocks[side].of(lambda: made.__setitem__(side, sides[side]()))

    def figures(readings: Readings) -> list[Figure]:
        return [_figure(name, readings, clocks["djinn"].unit)]

    rounds = setting.rounds(ROUNDS)
    after = setting.after_rounds(figures, rounds, before)
    readings = take_turns({side: partial(timed, side) for side in sides}, rounds=rounds, after=after)
    if "samples" not in name:  # generators of their own draw other samples
        checks.same(f"new tokens of {name}", made["djinn"], made["plain"])
    return _figure(name, readings, clocks["djinn"].unit)


def _figure(name: str, readings: Readings, unit: str) -> Figure:
    return compared(f"{name}, of plain batched generate", "plain", "djinn", readings, unit=unit, bar=at_least(BAR))
