"""A session with a LoRA adapter against PEFT on the same files: greedy generation, and bits of logits (fp32, bf16).
CPU seconds of engine and client (on a GPU, seconds of the wall clock), in turns."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import djinn_jupyter as dj
from djinn_evaluation.baselines.asking import BaselineFailed
from djinn_evaluation.benchmarks.environments import TOOLS, NotRun, python_of
from djinn_evaluation.benchmarks.measuring import take_turns
from djinn_evaluation.benchmarks.processes import clock_of
from djinn_evaluation.benchmarks.results import Checks, Figure, Result, at_most, compared
from djinn_evaluation.benchmarks.serving_engine import engine_of, pid_of
from djinn_evaluation.benchmarks.setting import Setting, Shape
from djinn_evaluation.benchmarks.worker import Worker, worker
from djinn_evaluation.digest import digest
from djinn_evaluation.serving import random_tokens
from djinn_jupyter.api.engine import RemoteEngine

NEW = 32
LENGTHS = (32, 256)
ROUNDS = 9
BAR = 1.05
DTYPES = ("float32", "bfloat16")


def run(setting: Setting) -> Result:
    shape, checks = setting.shape(), Checks()
    settings = {
        "shape": shape,
        "lengths": LENGTHS,
        "new_tokens": NEW,
        "rounds": setting.rounds(ROUNDS),
        "tool": TOOLS["peft"],
    }
    try:
        with _peft(setting, shape) as (theirs, folder, adapter):
            figures = _measured(theirs, folder, adapter, setting, checks)
            for dtype in DTYPES:
                _compare_bits(theirs, folder, adapter, dtype, setting, checks)
    except (NotRun, BaselineFailed) as why:
        figures = [Figure(name=_name(length), unit="x", value=None, not_run=str(why)) for length in LENGTHS]
    return Result(benchmark="adapters", settings=settings, figures=tuple(figures), checks=checks.counts)


@contextmanager
def _peft(setting: Setting, shape: Shape) -> Iterator[tuple[Worker, str, str]]:
    """Start PEFT in its own environment; give the folders of the model and of an adapter that PEFT has saved."""
    with worker("with_peft", python_of("peft")) as theirs:
        folder = setting.saved(theirs, shape)
        adapter = str(Path(folder).with_name("adapter"))
        theirs.ask("draw", folder=folder, adapter=adapter)
        yield theirs, folder, adapter


def _measured(theirs: Worker, folder: str, adapter: str, setting: Setting, checks: Checks) -> list[Figure]:
    figures: list[Figure] = []
    theirs.ask("adapt", folder=folder, adapter=adapter, dtype="float32")
    with engine_of(folder, setting) as engine:
        engine.add_adapter("drawn", adapter)
        for length in LENGTHS:
            figures.append(_generated(length, theirs, engine, setting, checks))
            setting.so_far(figures, f"up to {length} positions")
    return figures


def _generated(length: int, theirs: Worker, engine: RemoteEngine, setting: Setting, checks: Checks) -> Figure:
    prompt = random_tokens(length, setting.shape().vocabulary)
    session = engine.session(f"tuned {length}", adapter="drawn")
    clocks = {"peft": clock_of(theirs.pid), "djinn": clock_of(os.getpid(), pid_of(engine))}
    found: dict[str, list[int]] = {}

    def ours() -> None:
        found["djinn"] = list(session.run(prompt, max_new_tokens=NEW, ignore_eos=True).tokens)

    def peft() -> None:
        found["peft"] = theirs.ask("generate", tokens=prompt, new=NEW)["tokens"]

    sides = {"peft": partial(clocks["peft"].of, peft), "djinn": partial(clocks["djinn"].of, ours)}
    readings = take_turns(sides, rounds=setting.rounds(ROUNDS))
    checks.same(f"new tokens after {length} positions", found["djinn"], found["peft"])
    return compared(_name(length), "djinn", "peft", readings, unit=clocks["djinn"].unit, bar=at_most(BAR))


def _name(length: int) -> str:
    return f"{NEW} tokens after {length} with an adapter, of PEFT's time"


def _compare_bits(theirs: Worker, folder: str, adapter: str, dtype: str, setting: Setting, checks: Checks) -> None:
    """Compare the logits behind prompts bit for bit, with the adapter and, in another session, without."""
    theirs.ask("adapt", folder=folder, adapter=adapter, dtype=dtype)
    engine = dj.load(folder, threads=setting.threads, dtype=dtype)
    try:
        engine.add_adapter("drawn", adapter)
        for length in LENGTHS:
            prompt = random_tokens(length, setting.shape().vocabulary)
            for kind, name in (("adapted", "drawn"), ("base", None)):
                stop = engine.session(f"{kind} {length}", adapter=name).run(prompt, max_new_tokens=1, ignore_eos=True)
                plain = theirs.ask("logits", tokens=prompt, adapted=name is not None)["digest"]
                checks.same(f"bits of logits of the {kind} session in {dtype}", digest(stop.logits), plain)
    finally:
        engine.stop(force=True)
