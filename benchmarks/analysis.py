"""TransformerLens's analysis on our engine, against the same code on its own model: its patching function, a cache of
all values with its attribution, and a forward with a function at every layer. CPU seconds, in turns."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np

from benchmarks.environments import NotRun
from benchmarks.measuring import Spread, ratios, take_turns
from benchmarks.peers import peer_python
from benchmarks.processes import Clock, clock_of
from benchmarks.results import Checks, Disagreement, Figure, Result, at_least
from benchmarks.serving_engine import engine_of, pid_of
from benchmarks.setting import Setting, Shape
from benchmarks.worker import Worker, worker
from djinn_jupyter.experiments.baselines.asking import BaselineFailed
from djinn_jupyter.experiments.serving import random_tokens

POSITIONS, EVERY, ROUNDS = 16, 8, 3
BAR: Final = 1.0
TOLERANCE: Final = 1e-3  # between logits: their attention is eager on both sides, their kernels are the same
PEER: Final = "transformer-lens"


def run(setting: Setting) -> Result:
    shape, checks = setting.shape(), Checks()
    with worker("plain") as plain:
        folder = setting.saved(plain, shape)
    clean, corrupted = (random_tokens(POSITIONS, shape.vocabulary, seed) for seed in (1, 2))
    work: dict[str, dict[str, Any]] = {
        "patch": {"clean": clean, "corrupted": corrupted, "every": EVERY},
        "analyse": {"line": clean},
        "hook": {"line": clean},
    }
    figures: list[Figure] = []
    try:
        with engine_of(folder, setting) as engine, worker("analysing", peer_python(PEER)) as asked:
            asked.ask("load", folder=folder, threads=setting.threads)
            clock = clock_of(pid_of(engine), asked.pid)
            for verb, given in work.items():
                figures.append(_measured(verb, asked, clock, given, setting, checks))
                setting.so_far(figures, f"up to {verb}")
    except (NotRun, BaselineFailed) as why:
        figures = [_figure(verb, None, {}, str(why)) for verb in work]
    return Result(
        benchmark="analysis", settings=_settings(shape, setting), figures=tuple(figures), checks=checks.counts
    )


def _settings(shape: Shape, setting: Setting) -> dict[str, Any]:
    return {"shape": shape, "positions": POSITIONS, "patched": f"one of {EVERY}", "rounds": setting.rounds(ROUNDS)}


def _measured(
    verb: str, asked: Worker, clock: Clock, given: dict[str, Any], setting: Setting, checks: Checks
) -> Figure:
    """Measure one piece of their analysis on both sides, and compare what it finds."""
    found: dict[str, np.ndarray[Any, Any]] = {}

    def on(side: str) -> Callable[[], float]:
        return lambda: clock.of(lambda: found.update({side: np.array(asked.ask(verb, side=side, **given)["values"])}))

    readings = take_turns({"djinn": on("djinn"), "own": on("own")}, rounds=setting.rounds(ROUNDS))
    far = float(np.abs(found["djinn"] - found["own"]).max() / np.abs(found["own"]).max())
    if not far <= TOLERANCE:
        raise Disagreement(f"{verb}: what TransformerLens finds on the engine is {far:.2g} away from its own.")
    checks.same(f"shapes of what {verb} finds, values within {TOLERANCE}", found["djinn"].shape, found["own"].shape)
    return _figure(verb, clock, readings, None)


def _figure(verb: str, clock: Clock | None, readings: dict[str, list[float]], not_run: str | None) -> Figure:
    names = {
        "patch": "patching of residuals by TransformerLens, of its own speed",
        "analyse": "a cache of all values and attribution by TransformerLens, of its own speed",
        "hook": "a forward with a function at every layer, of TransformerLens's own speed",
    }
    return Figure(
        name=names[verb],
        unit="x",
        value=Spread.of(ratios(readings["own"], readings["djinn"])) if readings else None,
        bar=at_least(BAR),
        sides={side: Spread.of(values) for side, values in readings.items()},
        sides_unit=None if clock is None else clock.unit,
        not_run=not_run,
    )
