"""Attribution patching by one request against plain PyTorch: two forwards and a backward with hooks, for residuals by
layer and position. CPU seconds of engine and client (on a GPU, seconds of the wall clock), in turns."""

from __future__ import annotations

import os
from functools import partial

import numpy as np

import djinn_jupyter as dj
from djinn_evaluation.benchmarks.measuring import take_turns
from djinn_evaluation.benchmarks.processes import Clock, clock_of
from djinn_evaluation.benchmarks.results import Checks, Disagreement, Figure, Result, at_most, compared
from djinn_evaluation.benchmarks.serving_engine import engine_of, pid_of
from djinn_evaluation.benchmarks.setting import Setting
from djinn_evaluation.benchmarks.worker import Worker, worker
from djinn_evaluation.serving import random_tokens
from djinn_jupyter.api.engine import RemoteEngine

LENGTHS = (16, 128)
ROUNDS = 5
BAR = 1.1
TOKEN = 3
TOLERANCE = 1e-3  # of the norm of all scores: float32, summed in another order


def run(setting: Setting) -> Result:
    shape, checks = setting.shape(), Checks()
    figures: list[Figure] = []
    with worker("plain") as plain:
        folder = setting.saved(plain, shape)
        with engine_of(folder, setting) as engine:
            clocks = {"plain": clock_of(plain.pid), "djinn": clock_of(os.getpid(), pid_of(engine))}
            for length in LENGTHS:
                clean, corrupted = (random_tokens(length, shape.vocabulary, seed) for seed in (1, 2))
                figures.append(_measured(clean, corrupted, plain, engine, clocks, setting, checks))
                setting.so_far(figures, f"up to {length} positions")
    settings = {"shape": shape, "lengths": LENGTHS, "rounds": setting.rounds(ROUNDS)}
    return Result(benchmark="attribution", settings=settings, figures=tuple(figures), checks=checks.counts)


def _measured(
    clean: list[int],
    corrupted: list[int],
    plain: Worker,
    engine: RemoteEngine,
    clocks: dict[str, Clock],
    setting: Setting,
    checks: Checks,
) -> Figure:
    found: dict[str, np.ndarray] = {}

    def theirs() -> None:
        found["plain"] = np.array(plain.ask("attribute", clean=clean, corrupted=corrupted, token=TOKEN)["scores"])

    def ours() -> None:
        scores = dj.attribute(
            engine, clean=clean, corrupted=corrupted, site="resid_post", over=("layer", "position"),
            metric=f"logit({TOKEN})",
        )  # fmt: skip
        found["djinn"] = scores.values

    sides = {"plain": partial(clocks["plain"].of, theirs), "djinn": partial(clocks["djinn"].of, ours)}
    readings = take_turns(sides, rounds=setting.rounds(ROUNDS))
    far = float(np.linalg.norm(found["djinn"] - found["plain"]) / np.linalg.norm(found["plain"]))
    if not far <= TOLERANCE:
        raise Disagreement(f"The scores of {len(clean)} positions are {far:.2g} of their norm away from plain ones.")
    checks.same(f"scores within {TOLERANCE}", found["djinn"].shape, found["plain"].shape)
    name = f"attribution of residuals of {len(clean)} positions, of two forwards and a backward"
    return compared(name, "djinn", "plain", readings, unit=clocks["djinn"].unit, bar=at_most(BAR))
