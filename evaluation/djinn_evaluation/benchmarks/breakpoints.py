"""The cost per token of an armed breakpoint that does not hit, by kind of condition, against none armed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from djinn_evaluation.benchmarks.measuring import Spread, differences, in_milliseconds, take_turns
from djinn_evaluation.benchmarks.processes import Computing
from djinn_evaluation.benchmarks.results import Checks, Figure, Result, at_most
from djinn_evaluation.benchmarks.serving_engine import Stopwatch, engine_of, pid_of
from djinn_evaluation.benchmarks.setting import GPT2, Setting, Shape
from djinn_evaluation.benchmarks.worker import worker
from djinn_evaluation.intervals import ratios
from djinn_evaluation.serving import random_tokens
from djinn_jupyter.api.session import RemoteSession

# A small model for costs of microseconds: its tokens are short enough for them to show.
SMALL = replace(GPT2, width=128, heads=4, vocabulary=1000)
CHEAP = {
    "token": 'token == "<none>"',
    "position": "position == 9999",
    "step": "step == 9999",
    "norm": "norm > 1e9",
}
LENS = {"lens": 'top1 == "<none>"'}
PROMPT, NEW, NEW_OF_LENS = 8, 200, 48
ROUNDS, ROUNDS_OF_LENS = 25, 11


def run(setting: Setting) -> Result:
    checks = Checks()
    cheap, lens = setting.rounds(ROUNDS), setting.rounds(ROUNDS_OF_LENS)
    figures = _cheap(setting, cheap, checks)
    setting.so_far(figures, "all but the condition on the lens")
    figures += _lens(setting, lens, checks)
    settings = {
        "shape": setting.shape(SMALL),
        "shape_of_lens": setting.shape(),
        "site": _site(setting.shape()),
        "new_tokens": NEW,
        "new_tokens_of_lens": NEW_OF_LENS,
        "rounds": cheap,
        "rounds_of_lens": lens,
        "conditions": {**CHEAP, **LENS},
    }
    return Result(benchmark="breakpoints", settings=settings, figures=tuple(figures), checks=checks.counts)


def _cheap(setting: Setting, rounds: int, checks: Checks) -> list[Figure]:
    shape = setting.shape(SMALL)
    with worker("plain") as plain:
        folder = setting.saved(plain, shape)
    with engine_of(folder, setting) as engine:
        computed = {name: Computing(pid_of(engine)) for name in ("none", *CHEAP)}
        sides = _sides(engine.session("breakpoints", fresh=True), shape, CHEAP, NEW, checks, computed)
        readings = take_turns(sides, rounds=rounds)
    computing = {name: [s / NEW for s in one.readings[-rounds:]] for name, one in computed.items()}
    return [
        Figure(
            name=f"armed {name} condition that does not hit",
            unit="ms/token",
            value=Spread.of(differences(readings[name], readings["none"], 1000)),
            bar=at_most(0.1),
            sides={
                **{side: in_milliseconds(readings[side]) for side in ("none", name)},
                **{f"{side}, computing": in_milliseconds(computing[side]) for side in ("none", name)},
            },
            sides_unit="ms/token",
        )
        for name in CHEAP
    ]


def _lens(setting: Setting, rounds: int, checks: Checks) -> list[Figure]:
    shape = setting.shape()
    with worker("plain") as plain:
        folder = setting.saved(plain, shape)
        plain.ask("remember", tokens=random_tokens(PROMPT, shape.vocabulary))
        with engine_of(folder, setting) as engine:
            computed = {name: Computing(pid_of(engine)) for name in ("none", *LENS)}
            sides = _sides(engine.session("breakpoints", fresh=True), shape, LENS, NEW_OF_LENS, checks, computed)
            readings = take_turns({**sides, "head": lambda: plain.seconds("head")}, rounds=rounds)
    extra = differences(readings["lens"], readings["none"])
    return [
        Figure(
            name="armed lens condition that does not hit, of one head's time",
            unit="x",
            value=Spread.of(ratios(extra, readings["head"])),
            bar=at_most(1.0),
            sides={side: in_milliseconds(values) for side, values in readings.items()},
            sides_unit="ms/token",
        )
    ]


def _sides(
    session: RemoteSession,
    shape: Shape,
    conditions: dict[str, str],
    new: int,
    checks: Checks,
    computed: dict[str, Computing],
) -> dict[str, Callable[[], float]]:
    """Return for each condition a function that measures the seconds from token to token; the engine's computing time
    of each run goes to `computed`."""
    prompt = random_tokens(PROMPT, shape.vocabulary)

    def seconds_a_token(name: str, condition: str | None) -> float:
        session.clear()
        if condition is not None:
            session.breakpoint(_site(shape), when=condition)
        watch = Stopwatch()
        computed[name].begin()
        done = session.run(prompt, max_new_tokens=new, ignore_eos=True, on_token=watch)
        computed[name].end()
        checks.same("runs that did not hit", type(done).__name__, "Finished")
        return watch.usual

    return {name: partial(seconds_a_token, name, when) for name, when in {"none": None, **conditions}.items()}


def _site(shape: Shape) -> str:
    return f"resid_post.{shape.layers // 2}"
