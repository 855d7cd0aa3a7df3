"""The cost of a steering rule at each site that it meets: generation with some rules of a kind at every layer, against
the same without. CPU seconds of the engine (on a GPU, seconds of the wall clock), in turns. A cost has the interval of
its median, which decides the bar or leaves it open."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np

import djinn_jupyter as dj
from djinn_evaluation.benchmarks.measuring import Readings, Spread, differences, take_turns
from djinn_evaluation.benchmarks.processes import clock_of
from djinn_evaluation.benchmarks.results import Bar, Checks, Figure, Result
from djinn_evaluation.benchmarks.serving_engine import engine_of, pid_of
from djinn_evaluation.benchmarks.setting import Setting
from djinn_evaluation.benchmarks.worker import worker
from djinn_evaluation.serving import random_tokens
from djinn_jupyter.api.session import RemoteSession
from djinn_jupyter.api.stops import Finished
from djinn_jupyter.link.channel import expect
from djinn_jupyter.wire.edits import Edit

RULES, NEW, LENGTH = 8, 4, 16  # so many rules that their cost stands out from the layers' own, and turns so short
ROUNDS = 61  # that both sides of a round meet the machine in one state: a turn varies by as much as its rules take
BAR = 0.1


def kinds(width: int) -> dict[str, Callable[[float], Edit]]:
    """Return each kind of edit as a function of a number by which the rules of a kind differ."""
    direction = np.random.default_rng(1).standard_normal(width).astype(np.float32)
    return {
        "scale": lambda number: dj.scale(1 + number),
        "add": lambda number: dj.add(direction, number),
        "clamp": lambda number: dj.clamp(-5 - number, 5 + number),
        "project_out": lambda number: dj.project_out(direction * (1 + number)),
        "norm_match": lambda number: dj.norm_match(direction, number),
        "orthogonal": lambda number: dj.orthogonal(direction, 1 + number),
        "projection_cap": lambda number: dj.projection_cap(direction, -1 - number, 1 + number),
    }


def run(setting: Setting) -> Result:
    shape, checks = setting.shape(), Checks()
    prompt, figures = random_tokens(LENGTH, shape.vocabulary, 1), list[Figure]()
    with worker("plain") as plain:
        folder = setting.saved(plain, shape)
        with engine_of(folder, setting) as engine:
            clock = clock_of(pid_of(engine))
            none = engine.session("none", fresh=True)
            for name, edit in kinds(shape.width).items():
                ruled = engine.session(name, fresh=True)
                for number in range(RULES):
                    ruled.steer("resid_post.*", edit(1e-3 * (1 + number)))
                sides = {
                    side: partial(clock.of, partial(_generated, session, prompt, rules, checks))
                    for side, session, rules in (("with", ruled, RULES), ("without", none, 0))
                }
                readings = take_turns(sides, rounds=setting.rounds(ROUNDS))
                figures.append(_figure(name, readings, RULES * NEW * shape.layers, clock.unit))
                setting.so_far(figures, f"up to {name}")
                ruled.close()
    settings = {"shape": shape, "rules": RULES, "new_tokens": NEW, "prompt": LENGTH, "rounds": setting.rounds(ROUNDS)}
    return Result(benchmark="rules", settings=settings, figures=tuple(figures), checks=checks.counts)


def _generated(session: RemoteSession, prompt: list[int], rules: int, checks: Checks) -> None:
    ended = expect(session.run(prompt, max_new_tokens=NEW, ignore_eos=True), Finished)
    checks.same("passes that all rules met", [rule.passes_met for rule in ended.rules], [NEW] * rules)


def _figure(name: str, readings: Readings, met: int, unit: str) -> Figure:
    """Return the cost of a rule each time a site meets it, of `met` times."""
    return Figure(
        name=f"a rule of kind {name}, each time a site meets it",
        unit="ms",
        value=Spread.of_median(differences(readings["with"], readings["without"], 1e3 / met)),
        bar=Bar(sense="at most", value=BAR, by_interval=True),
        sides={side: Spread.of(values) for side, values in readings.items()},
        sides_unit=unit,
    )
