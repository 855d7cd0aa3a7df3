"""Stops: a resume, a stop and a fork against what plain PyTorch takes, and the price of breakpoints and rules."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from time import perf_counter

import numpy as np

import djinn_jupyter as dj
from djinn_evaluation.baselines.asking import digest
from djinn_evaluation.benchmarks.harness import (
    GPT2,
    Bar,
    Checks,
    Computing,
    Figure,
    Readings,
    Result,
    Setting,
    Shape,
    Spread,
    Stopwatch,
    Worker,
    at_most,
    both_sides,
    clock_of,
    compared,
    differences,
    engine_of,
    in_milliseconds,
    milliseconds,
    pid_of,
    take_turns,
)
from djinn_evaluation.intervals import ratios
from djinn_evaluation.serving import random_tokens
from djinn_jupyter.api.engine import RemoteEngine
from djinn_jupyter.api.session import RemoteSession
from djinn_jupyter.api.stops import Finished
from djinn_jupyter.link.channel import expect
from djinn_jupyter.wire.edits import Edit

# A small model for costs of microseconds: its tokens are short enough for them to show.
SMALL = replace(GPT2, width=128, heads=4, vocabulary=1000)
CHEAP = {
    "token": 'token == "<none>"',
    "position": "position == 9999",
    "step": "step == 9999",
    "norm": "norm > 1e9",
}
LENS = {"lens": 'top1 == "<none>"'}
PROMPT, NEW_OF_BREAKPOINTS, NEW_OF_LENS = 8, 200, 48
ROUNDS_OF_BREAKPOINTS, ROUNDS_OF_LENS = 25, 11


def run_breakpoints(setting: Setting) -> Result:
    """The cost per token of an armed breakpoint that does not hit, by kind of condition, against none armed."""
    checks = Checks()
    cheap, lens = setting.rounds(ROUNDS_OF_BREAKPOINTS), setting.rounds(ROUNDS_OF_LENS)
    figures = _cheap(setting, cheap, checks)
    setting.so_far(figures, "all but the condition on the lens")
    figures += _lens(setting, lens, checks)
    settings = {
        "shape": setting.shape(SMALL),
        "shape_of_lens": setting.shape(),
        "site": _site(setting.shape()),
        "new_tokens": NEW_OF_BREAKPOINTS,
        "new_tokens_of_lens": NEW_OF_LENS,
        "rounds": cheap,
        "rounds_of_lens": lens,
        "conditions": {**CHEAP, **LENS},
    }
    return Result(benchmark="breakpoints", settings=settings, figures=tuple(figures), checks=checks.counts)


def _cheap(setting: Setting, rounds: int, checks: Checks) -> list[Figure]:
    shape = setting.shape(SMALL)
    with engine_of(setting.model(shape), setting) as engine:
        computed = {name: Computing(pid_of(engine)) for name in ("none", *CHEAP)}
        sides = _sides(engine.session("breakpoints", fresh=True), shape, CHEAP, NEW_OF_BREAKPOINTS, checks, computed)
        readings = take_turns(sides, rounds=rounds)
    computing = {name: [s / NEW_OF_BREAKPOINTS for s in one.readings[-rounds:]] for name, one in computed.items()}
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
    with both_sides(shape, setting) as (plain, engine):
        plain.ask("remember", tokens=random_tokens(PROMPT, shape.vocabulary))
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
    """Return for each condition what measures seconds from token to token; computing goes to `computed`."""
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


POSITIONS = 256
BAR_OF_RESUME, DECODE_MILLISECONDS = 1.05, 0.5
ROUNDS_OF_RESUME, ROUNDS_IN_DECODE = 9, 25


def run_resume(setting: Setting) -> Result:
    """A resume at layer k against the ideal: layers k.. and the head alone, by plain PyTorch from a saved hidden
    state."""
    shape, checks = setting.shape(), Checks()
    prompt = random_tokens(POSITIONS, shape.vocabulary)
    figures: list[Figure] = []
    with both_sides(shape, setting) as (plain, engine):
        plain.ask("remember", tokens=prompt)
        session = engine.session("resume", fresh=True)
        for layer in layers_of(shape):
            figures.append(_in_prefill(layer, prompt, session, plain, setting.rounds(ROUNDS_OF_RESUME), checks))
            setting.so_far(figures, f"up to layer {layer} of the prompt")
        plain.ask("remember", tokens=[*prompt, _first_token(session, prompt)])
        for layer in layers_of(shape):
            figures += _in_decode(layer, prompt, session, plain, setting.rounds(ROUNDS_IN_DECODE), checks)
            setting.so_far(figures, f"up to layer {layer} of a decode step")
    settings = {"shape": shape, "positions": POSITIONS, "rounds": setting.rounds(ROUNDS_OF_RESUME)}
    return Result(benchmark="resume", settings=settings, figures=tuple(figures), checks=checks.counts)


def layers_of(shape: Shape) -> list[int]:
    last = shape.layers
    return [1, last // 4, last // 2, 3 * last // 4, last - 1]


def stop_at(session: RemoteSession, layer: int, prompt: list[int], *, step: int) -> None:
    """Run until `layer` layers of the pass of `step` have run; the pass is the last of its run."""
    session.clear()
    session.breakpoint(f"resid_post.{layer - 1}", when=f"step == {step}")
    session.run(prompt, max_new_tokens=step + 1, ignore_eos=True)


def _first_token(session: RemoteSession, prompt: list[int]) -> int:
    session.clear()
    return int(session.run(prompt, max_new_tokens=1, ignore_eos=True).tokens[0])


def _in_prefill(
    layer: int, prompt: list[int], session: RemoteSession, plain: Worker, rounds: int, checks: Checks
) -> Figure:
    stop_at(session, layer, prompt, step=0)
    readings = _against(session, plain, "from_layer", layer, rounds, checks)
    name = f"resume at layer {layer} of the prompt, of the ideal"
    return compared(name, "djinn", "ideal", readings, unit="ms", each=milliseconds, bar=at_most(BAR_OF_RESUME))


def _in_decode(
    layer: int, prompt: list[int], session: RemoteSession, plain: Worker, rounds: int, checks: Checks
) -> list[Figure]:
    stop_at(session, layer, prompt, step=1)
    readings = _against(session, plain, "from_layer_in_decode", layer, rounds, checks)
    beyond = differences(readings["djinn"], [BAR_OF_RESUME * ideal for ideal in readings["ideal"]], 1000)
    return [
        Figure(
            name=f"resume at layer {layer} of a decode step, beyond {BAR_OF_RESUME} x the ideal",
            unit="ms",
            value=Spread.of(beyond),
            bar=at_most(DECODE_MILLISECONDS),
            sides={name: in_milliseconds(values) for name, values in readings.items()},
            sides_unit="ms",
        )
    ]


def _against(
    session: RemoteSession, plain: Worker, ideal: str, layer: int, rounds: int, checks: Checks
) -> dict[str, list[float]]:
    bits: dict[str, str] = {}

    def ours() -> float:
        begun = perf_counter()
        done = session.resume(free=True)
        seconds = perf_counter() - begun
        assert isinstance(done, Finished)
        bits["djinn"] = digest(done.logits)
        session.back()
        return seconds

    def theirs() -> float:
        answer = plain.ask(ideal, layer=layer)
        if "djinn" in bits:
            checks.same("last logits, bit for bit", bits["djinn"], answer["digest"])
        return float(answer["seconds"])

    return take_turns({"djinn": ours, "ideal": theirs}, rounds=rounds)


ROUNDS_OF_STOP = 9


def run_stop(setting: Setting) -> Result:
    """The time of a stop: from `run` to `Paused` after N layers, against running N layers by plain PyTorch."""
    shape, checks = setting.shape(), Checks()
    prompt = random_tokens(POSITIONS, shape.vocabulary)
    figures: list[Figure] = []
    with both_sides(shape, setting) as (plain, engine):
        plain.ask("remember", tokens=prompt)
        session = engine.session("stop", fresh=True)
        for layers in layers_of(shape):
            figures.append(_at(layers, prompt, session, plain, setting.rounds(ROUNDS_OF_STOP), checks))
            setting.so_far(figures, f"up to layer {layers}")
    settings = {"shape": shape, "positions": POSITIONS, "rounds": setting.rounds(ROUNDS_OF_STOP)}
    return Result(benchmark="stop", settings=settings, figures=tuple(figures), checks=checks.counts)


def _at(layers: int, prompt: list[int], session: RemoteSession, plain: Worker, rounds: int, checks: Checks) -> Figure:
    session.clear()
    session.breakpoint(f"resid_post.{layers - 1}")

    def ours() -> float:
        begun = perf_counter()
        stop = session.run(prompt, max_new_tokens=1)
        seconds = perf_counter() - begun
        checks.same("layers run before the stop", stop.reply.layers_run, layers)
        return seconds

    readings = take_turns({"djinn": ours, "plain": lambda: plain.seconds("first_layers", count=layers)}, rounds=rounds)
    name = f"from run to Paused after {layers} layers of {POSITIONS} positions, of running {layers} layers"
    return compared(name, "djinn", "plain", readings, unit="ms", each=milliseconds)


COMMITTED = 1000
ROUNDS_OF_FORK = 25


def run_fork(setting: Setting) -> Result:
    """A fork at 1,000 committed positions: its time, and the pages copied by it and by the first token after it."""
    shape, checks, rounds = setting.shape(), Checks(), setting.rounds(ROUNDS_OF_FORK)
    with engine_of(setting.model(shape), setting) as engine:
        parent = engine.session("parent", fresh=True)
        parent.run(random_tokens(COMMITTED, shape.vocabulary), max_new_tokens=1, ignore_eos=True)
        checks.same("committed positions", parent.describe().committed, COMMITTED)
        at_fork, at_token = _copied(engine, parent, checks)
        times = take_turns({"fork": lambda: _timed(parent), "round trip": engine.ping}, rounds=rounds)
        page_positions = engine.description.cache_groups[0].page_positions
    figures = (
        Figure(
            name="fork, asked and answered",
            unit="ms",
            value=in_milliseconds(times["fork"]),
            bar=at_most(1.0),
            sides={"round trip": in_milliseconds(times["round trip"])},
            sides_unit="ms",
        ),
        Figure(name="pages copied by the fork", unit="pages", value=Spread.of([at_fork]), bar=at_most(1)),
        Figure(name="pages copied by its next token", unit="pages", value=Spread.of([at_token]), bar=at_most(1)),
    )
    settings = {"shape": shape, "committed": COMMITTED, "page_positions": page_positions, "rounds": rounds}
    return Result(benchmark="fork", settings=settings, figures=figures, checks=checks.counts)


def _timed(parent: RemoteSession) -> float:
    begun = perf_counter()
    child = parent.fork("child")
    seconds = perf_counter() - begun
    child.close()
    return seconds


def _copied(engine: RemoteEngine, parent: RemoteSession, checks: Checks) -> tuple[int, int]:
    """Return the pages added by the fork and by the child's next token, which lies in the tail page."""
    before = _in_use(engine, parent)
    child = parent.fork("counted")
    forked = _in_use(engine, parent)
    child.run(extend=True, max_new_tokens=1, ignore_eos=True)
    checks.same("committed positions of the child", child.describe().committed, COMMITTED + 1)
    written = _in_use(engine, parent)
    child.close()
    checks.same("pages after the child was closed", _in_use(engine, parent), before)
    return forked - before, written - forked


def _in_use(engine: RemoteEngine, asked: RemoteSession) -> int:
    """Return the slab's pages in use; a request makes the engine's thread publish them anew."""
    asked.describe()
    return sum(slab.pages - slab.pages_free for slab in engine.statistics().slabs)


RULES, NEW_OF_RULES, LENGTH = 8, 4, 16  # many rules, whose cost stands out from the layers' own, and short turns
ROUNDS_OF_RULES = 61  # each side of a round meets the machine in one state: a turn varies by what its rules take
BAR_OF_RULES = 0.1


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


def run_rules(setting: Setting) -> Result:
    """The cost of a steering rule at each site that it meets: generation with some rules of a kind at every layer,
    against the same without. CPU seconds of the engine (on a GPU, seconds of the wall clock), in turns. A cost has
    the interval of its median, which decides the bar or leaves it open."""
    shape, checks = setting.shape(), Checks()
    prompt, figures = random_tokens(LENGTH, shape.vocabulary, 1), list[Figure]()
    with engine_of(setting.model(shape), setting) as engine:
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
            readings = take_turns(sides, rounds=setting.rounds(ROUNDS_OF_RULES))
            figures.append(_figure(name, readings, RULES * NEW_OF_RULES * shape.layers, clock.unit))
            setting.so_far(figures, f"up to {name}")
            ruled.close()
    settings = {
        "shape": shape,
        "rules": RULES,
        "new_tokens": NEW_OF_RULES,
        "prompt": LENGTH,
        "rounds": setting.rounds(ROUNDS_OF_RULES),
    }
    return Result(benchmark="rules", settings=settings, figures=tuple(figures), checks=checks.counts)


def _generated(session: RemoteSession, prompt: list[int], rules: int, checks: Checks) -> None:
    ended = expect(session.run(prompt, max_new_tokens=NEW_OF_RULES, ignore_eos=True), Finished)
    checks.same("passes that all rules met", [rule.passes_met for rule in ended.rules], [NEW_OF_RULES] * rules)


def _figure(name: str, readings: Readings, met: int, unit: str) -> Figure:
    """Return the cost of a rule each time a site meets it, of `met` times."""
    return Figure(
        name=f"a rule of kind {name}, each time a site meets it",
        unit="ms",
        value=Spread.of_median(differences(readings["with"], readings["without"], 1e3 / met)),
        bar=Bar(sense="at most", value=BAR_OF_RULES, by_interval=True),
        sides={side: Spread.of(values) for side, values in readings.items()},
        sides_unit=unit,
    )
