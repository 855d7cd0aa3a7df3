"""TransformerLens's analysis on our engine, against the same code on its own model: its patching function, a cache of
all values with its attribution, and a forward with a function at every layer. CPU seconds, in turns. Of the last two
also the limit of an engine whose passes are as fast as their own: what bare round trips with the same bytes add."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import zmq

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
NAMES: Final = {
    "patch": "patching of residuals by TransformerLens, of its own speed",
    "analyse": "a cache of all values and attribution by TransformerLens, of its own speed",
    "hook": "a forward with a function at every layer, of TransformerLens's own speed",
}
TRIPS: Final = 9  # rounds of bare round trips
REQUEST: Final = 256  # bytes of one that carries no values


@dataclass(frozen=True, slots=True, kw_only=True)
class BytesAcross:
    """The bytes that have to cross between a notebook and an engine, `there` and `back`, so many `times`."""

    times: int
    there: int
    back: int


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
            values = asked.ask("cached_bytes", line=clean)["bytes"]
            of_layer = POSITIONS * shape.width * 4
            across = {
                "analyse": BytesAcross(times=1, there=REQUEST, back=values),
                "hook": BytesAcross(times=shape.layers, there=of_layer, back=of_layer),
            }
            by_verb = dict(zip(work, figures, strict=True))
            figures += [_limit(verb, by_verb[verb], crossed, setting) for verb, crossed in across.items()]
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


def _limit(verb: str, measured: Figure, crossed: BytesAcross, setting: Setting) -> Figure:
    """Return how fast a piece could be at most on an engine whose passes take as long as their own: what bare sockets
    take for the bytes that cross comes on top."""
    own, trips = measured.sides["own"], Spread.of(_bare_seconds(crossed, setting))
    assert own is not None
    assert trips is not None
    return Figure(
        name=f"limit of {NAMES[verb]}",
        unit="x",
        value=Spread.of([own.median / (own.median + trips.median)]),
        sides={
            "own": own,
            f"{crossed.times} bare round trips, {crossed.there} bytes there and {crossed.back} back": trips,
        },
        sides_unit=measured.sides_unit,
    )


def _bare_seconds(crossed: BytesAcross, setting: Setting) -> list[float]:
    endpoint, message = f"ipc://{setting.home}/bare-{crossed.back}", bytes(crossed.there)
    with worker("echo") as there, zmq.Context() as context, context.socket(zmq.DEALER) as dealer:
        there.ask("bind", endpoint=endpoint, replied=crossed.back)
        dealer.connect(endpoint)

        def cross() -> None:
            for _ in range(crossed.times):
                dealer.send(message, copy=False)
                dealer.recv(copy=False)

        cross()
        clock = clock_of(os.getpid(), there.pid)
        return [clock.of(cross) for _ in range(setting.rounds(TRIPS))]


def _figure(verb: str, clock: Clock | None, readings: dict[str, list[float]], not_run: str | None) -> Figure:
    return Figure(
        name=NAMES[verb],
        unit="x",
        value=Spread.of(ratios(readings["own"], readings["djinn"])) if readings else None,
        bar=at_least(BAR),
        sides={side: Spread.of(values) for side, values in readings.items()},
        sides_unit=None if clock is None else clock.unit,
        not_run=not_run,
    )
