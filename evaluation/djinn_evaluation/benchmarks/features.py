"""An SAE as a site: spliced into generation, against the same hook on the plain model; and breakpoints on single
features that never hit, in times of one row of its encoder. CPU seconds, in turns (on a GPU, of the wall clock)."""

from __future__ import annotations

from functools import partial

import djinn_jupyter as dj
from djinn_evaluation.benchmarks.measuring import Readings, Spread, take_turns
from djinn_evaluation.benchmarks.processes import clock_of
from djinn_evaluation.benchmarks.results import Bar, Checks, Figure, Result
from djinn_evaluation.benchmarks.serving_engine import engine_of, pid_of
from djinn_evaluation.benchmarks.setting import Setting
from djinn_evaluation.benchmarks.worker import Worker, worker
from djinn_evaluation.intervals import ratios
from djinn_evaluation.serving import random_tokens
from djinn_jupyter.api.engine import RemoteEngine
from djinn_jupyter.api.session import RemoteSession

PER_WIDTH = 8  # features for each number of the residual
LENGTH, NEW = 16, 16
BREAKPOINTS = 256  # so many that their cost stands out from the layers' own
CALLS = 2000
ROUNDS = 61


def run(setting: Setting) -> Result:
    shape, checks = setting.shape(), Checks()
    rounds, layer = setting.rounds(ROUNDS), setting.shape().layers // 2
    prompt = random_tokens(LENGTH, shape.vocabulary, 1)
    with worker("features") as plain:
        folder = setting.saved(plain, shape)
        sae = str(setting.home / "sae")
        plain.ask("save_sae", folder=sae, features=PER_WIDTH * shape.width)
        with engine_of(folder, setting) as engine:
            sessions = _sessions(engine, sae, layer)
            plain_clock, clock = clock_of(plain.pid), clock_of(pid_of(engine))
            sides = {
                name: partial(clock.of, partial(_generated, session, prompt)) for name, session in sessions.items()
            }
            spliced = partial(_spliced, plain, prompt, layer)
            sides |= {
                "hook": partial(plain_clock.of, spliced),
                "rows": partial(plain_clock.of, partial(plain.ask, "row", calls=CALLS, features=BREAKPOINTS)),
            }
            checks.same("tokens of both splices", _generated(sessions["spliced"], prompt), spliced())
            after = setting.after_rounds(partial(_figures, unit=clock.unit), rounds)
            readings = take_turns(sides, rounds=rounds, after=after)
    settings = {
        "shape": shape,
        "features": PER_WIDTH * shape.width,
        "site": f"resid_post.{layer}",
        "prompt": LENGTH,
        "new_tokens": NEW,
        "breakpoints": BREAKPOINTS,
        "rounds": rounds,
    }
    return Result(benchmark="features", settings=settings, figures=_figures(readings, clock.unit), checks=checks.counts)


def _sessions(engine: RemoteEngine, sae: str, layer: int) -> dict[str, RemoteSession]:
    """Return a session with the SAE in place of its point, one with breakpoints on features, and one with neither."""
    engine.add_module("spliced", sae, at=f"resid_post.{layer}", error_term=False)
    engine.add_module("sae", sae, at=f"resid_post.{layer}")
    sessions = {name: engine.session(name, fresh=True) for name in ("spliced", "armed", "none")}
    sessions["spliced"].steer(f"spliced.{layer}", dj.scale(1.0))
    for feature in range(BREAKPOINTS):
        sessions["armed"].breakpoint(f"sae.{layer}[{feature}]", when="value > 1e9")
    return sessions


def _generated(session: RemoteSession, prompt: list[int]) -> list[int]:
    return list(session.run(prompt, max_new_tokens=NEW, ignore_eos=True).tokens)


def _spliced(plain: Worker, prompt: list[int], layer: int) -> list[int]:
    found: list[int] = plain.ask("generate_spliced", tokens=prompt, new=NEW, layer=layer)["tokens"]
    return found[-NEW:]


def _figures(readings: Readings, unit: str) -> tuple[Figure, ...]:
    met = BREAKPOINTS * NEW
    costs = [(armed - none) / met for armed, none in zip(readings["armed"], readings["none"], strict=True)]
    rows = [seconds / CALLS for seconds in readings["rows"]]
    return (
        Figure(
            name="generation with an SAE spliced in, against a plain hook",
            unit="x",
            value=Spread.of_median(ratios(readings["spliced"], readings["hook"])),
            bar=Bar(sense="at most", value=1.05, by_interval=True),
            sides={name: Spread.of(readings[name]) for name in ("spliced", "hook", "none")},
            sides_unit=unit,
        ),
        Figure(
            name="a breakpoint on one feature that does not hit, each time a pass meets it, against one row",
            unit="rows",
            value=Spread.of_median(ratios(costs, rows)),
            bar=Bar(sense="at most", value=1.0, by_interval=True),
            sides={"breakpoint": Spread.of(costs), "row": Spread.of(rows)},
            sides_unit=unit,
        ),
    )
