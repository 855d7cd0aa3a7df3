"""Activations of many prompts, written to files: of plain batches that stop at the same layer and write as much.

CPU seconds, since both sides share the machine's cores: of the engine and this client, and of the plain process. On a
GPU seconds of the wall clock, in which this client waits for it.
"""

from __future__ import annotations

import os
import tempfile
from itertools import count
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file

from djinn_evaluation.benchmarks.measuring import take_turns
from djinn_evaluation.benchmarks.processes import clock_of
from djinn_evaluation.benchmarks.results import Checks, Disagreement, Figure, Result, at_least, compared
from djinn_evaluation.benchmarks.serving_engine import engine_of, pid_of
from djinn_evaluation.benchmarks.setting import Setting, Shape
from djinn_evaluation.benchmarks.worker import Worker, worker
from djinn_evaluation.serving import random_tokens
from djinn_jupyter.api.engine import RemoteEngine

PROMPTS, PROMPTS_IF_QUICK = 128, 32
LENGTH, LENGTHS = 32, range(17, 49)  # all of one length; of 32 lengths, half a token longer in the mean
ROUNDS = 5
BAR = 0.95
TOLERANCE = 1e-3  # of a row's norm: batches of another size sum in another order


def run(setting: Setting) -> Result:
    shape, checks = setting.shape(), Checks()
    with worker("batched") as plain:
        folder = setting.saved(plain, shape)
        with engine_of(folder, setting) as engine:
            number = PROMPTS_IF_QUICK if setting.quick else PROMPTS
            even = _measured("prompts of one length", [LENGTH] * number, engine, plain, setting, checks)
            lengths = [LENGTHS[i % len(LENGTHS)] for i in range(number)]
            setting.so_far([even], "prompts of one length")
            uneven = _measured("prompts of 32 lengths", lengths, engine, plain, setting, checks)
    settings = {"shape": shape, "prompts": number, "layer": _layer(shape), "rounds": setting.rounds(ROUNDS)}
    return Result(benchmark="collection", settings=settings, figures=(even, uneven), checks=checks.counts)


def _layer(shape: Shape) -> int:
    return shape.layers // 2


def _measured(
    what: str, lengths: list[int], engine: RemoteEngine, plain: Worker, setting: Setting, checks: Checks
) -> Figure:
    shape = setting.shape()
    prompts = [random_tokens(length, shape.vocabulary, seed=seed) for seed, length in enumerate(lengths)]
    layer, site = _layer(shape), f"resid_post.{_layer(shape)}"
    with tempfile.TemporaryDirectory(dir=setting.home) as folder:
        names = (Path(folder) / str(number) for number in count())

        def ours() -> float:
            before = clock.read()
            acts = engine.collect(prompts, site, to=next(names), positions=-1)
            seconds = clock.read() - before
            checks.same("every prompt in a shared pass", (acts.exact, acts.notes), (False, ()))
            found.append(np.asarray(acts[site]))
            return seconds

        def theirs() -> float:
            path = next(names).with_suffix(".safetensors")
            seconds = plain.seconds("collect", prompts=prompts, layer=layer, path=str(path))
            expected.append(load_file(path)[site])
            return seconds

        clock = clock_of(pid_of(engine), os.getpid())
        found: list[np.ndarray] = []
        expected: list[np.ndarray] = []
        readings = take_turns({"djinn": ours, "plain": theirs}, rounds=setting.rounds(ROUNDS))
    for one, other in zip(found, expected, strict=True):
        require_near(one, other)
        checks.same(f"rows of {what} within {TOLERANCE} of their norm", one.shape, other.shape)
    name = f"collection of {what}, of plain batches"
    return compared(name, "plain", "djinn", readings, unit=clock.unit, bar=at_least(BAR))


def require_near(ours: np.ndarray, theirs: np.ndarray) -> None:
    """Raise Disagreement where a row is another."""
    far = np.linalg.norm(ours - theirs, axis=1) / np.linalg.norm(theirs, axis=1)
    if not (far <= TOLERANCE).all():
        raise Disagreement(f"Row {int(far.argmax())} of the collection is {far.max():.2g} of its norm away.")
