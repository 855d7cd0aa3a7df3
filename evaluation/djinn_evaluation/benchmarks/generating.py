"""Generation, batches, adapters, features and activations to files, against plain PyTorch and PEFT."""

from __future__ import annotations

import os
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
from safetensors.numpy import load_file

import djinn_jupyter as dj
from djinn_evaluation.baselines.asking import BaselineFailed, digest
from djinn_evaluation.benchmarks.environments import TOOLS, NotRun, python_of
from djinn_evaluation.benchmarks.harness import (
    UNSAID,
    Bar,
    Checks,
    Clock,
    Computing,
    Disagreement,
    Figure,
    Readings,
    Result,
    Setting,
    Shape,
    Spread,
    Stopwatch,
    Worker,
    at_least,
    at_most,
    both_sides,
    clock_of,
    compared,
    engine_of,
    pid_of,
    take_turns,
    worker,
)
from djinn_evaluation.intervals import ratios
from djinn_evaluation.serving import random_tokens
from djinn_jupyter.api.engine import RemoteEngine
from djinn_jupyter.api.session import RemoteSession

NEW_OF_GENERATION = 48
PLACES = {64: 0.97, 1024: 1.0}
ROUNDS_OF_GENERATION = 16


@dataclass(slots=True)
class GenerationSide:
    """One side's readings of each call: seconds of decoding, and CPU seconds of the model's process."""

    computing: Computing
    decoding: list[float] = field(default_factory=list)
    tokens: list[list[int]] = field(default_factory=list)


def run_generation(setting: Setting) -> Result:
    """Generation through client, socket and engine against plain `generate`, greedy, at 64 and at 1,024 positions."""
    shape, checks = setting.shape(), Checks()
    figures: list[Figure] = []
    with both_sides(shape, setting) as (plain, engine):
        session = engine.session("generation", fresh=True)
        for positions, bar in PLACES.items():
            sides = {
                "plain": GenerationSide(Computing(plain.pid)),
                "djinn": GenerationSide(Computing(pid_of(engine))),
            }
            prompt = random_tokens(positions - NEW_OF_GENERATION, shape.vocabulary)
            whole = measure(prompt, session, plain, sides, setting.rounds(ROUNDS_OF_GENERATION))
            for tokens, other in zip(sides["djinn"].tokens, sides["plain"].tokens, strict=True):
                checks.same(f"new tokens at {positions} positions", tokens, other)
            figures += _figures_of_generation(positions, bar, whole, sides)
            setting.so_far(figures, f"up to {positions} positions")
    settings = {"shape": shape, "new_tokens": NEW_OF_GENERATION, "rounds": setting.rounds(ROUNDS_OF_GENERATION)}
    return Result(benchmark="generation", settings=settings, figures=tuple(figures), checks=checks.counts)


def measure(
    prompt: list[int], session: RemoteSession, plain: Worker, sides: dict[str, GenerationSide], rounds: int
) -> dict[str, list[float]]:
    """Return the seconds of whole calls, in turns; the other readings go to `sides`."""

    def ours() -> float:
        side, watch = sides["djinn"], Stopwatch()
        side.computing.begin()
        begun = perf_counter()
        done = session.run(prompt, max_new_tokens=NEW_OF_GENERATION, ignore_eos=True, on_token=watch)
        seconds = perf_counter() - begun
        side.computing.end()
        side.decoding.append(watch.decoding)
        side.tokens.append(list(done.tokens))
        return seconds

    def theirs() -> float:
        side = sides["plain"]
        side.computing.begin()
        answer = plain.ask("generate", tokens=prompt, new=NEW_OF_GENERATION)
        side.computing.end()
        side.decoding.append(answer["decoding"])
        side.tokens.append(answer["tokens"])
        return float(answer["seconds"])

    return take_turns({"plain": theirs, "djinn": ours}, rounds=rounds)


def _figures_of_generation(
    positions: int, bar: float, whole: dict[str, list[float]], sides: dict[str, GenerationSide]
) -> list[Figure]:
    rounds = len(whole["djinn"])
    decoding = {name: side.decoding[-rounds:] for name, side in sides.items()}
    computing = {name: side.computing.readings[-rounds:] for name, side in sides.items()}
    return [
        compared(
            f"decode tokens/s at {positions} positions, of plain generate",
            "plain",
            "djinn",
            decoding,
            unit="tokens/s",
            each=lambda seconds: (NEW_OF_GENERATION - 1) / seconds,
            bar=at_least(bar),
        ),
        compared(
            f"whole call to {positions} positions with its prompt, of plain generate",
            "plain",
            "djinn",
            whole,
            unit="s",
            bar=at_least(bar),
        ),
        compared(
            f"the same call in seconds computed by either process, of plain generate ({positions} positions)",
            "plain",
            "djinn",
            computing,
            unit="s",
            not_run=None if all(computing.values()) else UNSAID,
        ),
    ]


ROWS, NEW_OF_BATCHES, LENGTH_OF_BATCHES, SHORTEST = 32, 20, 16, 4
ROUNDS_OF_BATCHES = 7
BAR_OF_BATCHES = 0.95
Passes = Counter[str]
BatchesSide = Callable[[], list[list[int]]]


def run_batches(setting: Setting) -> Result:
    """32 continuations at once, in mode `fast`, against plain batched `generate`: samples of one prompt, and prompts
    of one length and of 32 lengths. CPU seconds of the process that computes (on a GPU, seconds of the wall clock),
    in turns."""
    shape, checks = setting.shape(), Checks()
    rows = 4 if setting.quick else ROWS
    same = [random_tokens(LENGTH_OF_BATCHES, shape.vocabulary, seed) for seed in range(rows)]
    ragged = [random_tokens(SHORTEST + i, shape.vocabulary, i) for i in range(rows)]
    figures: list[Figure] = []
    passes: Passes = Counter()
    with both_sides(shape, setting) as (plain, engine):
        session = engine.session("batches", fresh=True)
        clocks = {"plain": clock_of(plain.pid), "djinn": clock_of(pid_of(engine))}
        cases: dict[str, tuple[BatchesSide, BatchesSide]] = {
            f"{rows} samples of one prompt": (
                lambda: plain.ask("sample_batched", tokens=same[0], new=NEW_OF_BATCHES, rows=rows)["tokens"],
                lambda: _rows(session, checks, passes, same[0], samples=rows, temperature=1.0),
            ),
            f"{rows} prompts of one length": (
                lambda: plain.ask("generate_batched", prompts=same, new=NEW_OF_BATCHES)["tokens"],
                lambda: _rows(session, checks, passes, same),
            ),
            f"{rows} prompts of {rows} lengths": (
                lambda: plain.ask("generate_batched", prompts=ragged, new=NEW_OF_BATCHES)["tokens"],
                lambda: _rows(session, checks, passes, ragged),
            ),
        }
        for name, (theirs, ours) in cases.items():
            figures.append(
                _measured_of_batches(name, {"plain": theirs, "djinn": ours}, clocks, setting, figures, checks)
            )
            setting.so_far(figures, f"up to {name}")
    # a row whose client had no turn comes late; where most passes were computed alone, nothing was measured
    checks.same("most passes were shared", 2 * passes["shared"] >= passes["all"], True)
    settings = {"shape": shape, "rows": rows, "new_tokens": NEW_OF_BATCHES, "rounds": setting.rounds(ROUNDS_OF_BATCHES)}
    return Result(benchmark="batches", settings=settings, figures=tuple(figures), checks=checks.counts)


def _rows(session: RemoteSession, checks: Checks, passes: Passes, prompt: Any, **options: Any) -> list[list[int]]:
    """Return the new tokens of all rows, and count their passes."""
    rows: list[Any] = session.run(prompt, max_new_tokens=NEW_OF_BATCHES, ignore_eos=True, mode="fast", **options)
    checks.same("why rows share no passes", [row.note for row in rows], [None] * len(rows))
    for row in rows:
        passes.update(all=row.passes, shared=row.shared)
    return [list(row.tokens) for row in rows]


def _measured_of_batches(
    name: str,
    sides: dict[str, BatchesSide],
    clocks: dict[str, Clock],
    setting: Setting,
    before: list[Figure],
    checks: Checks,
) -> Figure:
    made: dict[str, list[list[int]]] = {}

    def timed(side: str) -> float:
        return clocks[side].of(lambda: made.__setitem__(side, sides[side]()))

    rounds, unit = setting.rounds(ROUNDS_OF_BATCHES), clocks["djinn"].unit
    after = setting.after_rounds(lambda readings: [_figure(name, readings, unit)], rounds, before)
    readings = take_turns({side: partial(timed, side) for side in sides}, rounds=rounds, after=after)
    if "samples" not in name:  # generators of their own draw other samples
        checks.same(f"new tokens of {name}", made["djinn"], made["plain"])
    return _figure(name, readings, unit)


def _figure(name: str, readings: Readings, unit: str) -> Figure:
    return compared(
        f"{name}, of plain batched generate", "plain", "djinn", readings, unit=unit, bar=at_least(BAR_OF_BATCHES)
    )


PROMPTS, PROMPTS_IF_QUICK = 128, 32
LENGTH_OF_COLLECTION = 32  # of all prompts; else 32 lengths, half a token longer in the mean
LENGTHS_OF_COLLECTION = range(17, 49)
ROUNDS_OF_COLLECTION = 5
BAR_OF_COLLECTION = 0.95
TOLERANCE = 1e-3  # of a row's norm: batches of another size sum in another order


def run_collection(setting: Setting) -> Result:
    """Activations of many prompts, written to files: of plain batches that stop at the same layer and write as much.

    CPU seconds, since both sides share the machine's cores: of the engine and this client, and of the plain
    process. On a GPU seconds of the wall clock, in which this client waits for it."""
    shape, checks = setting.shape(), Checks()
    with both_sides(shape, setting, "plain.Batched") as (plain, engine):
        number = PROMPTS_IF_QUICK if setting.quick else PROMPTS
        even = _measured_of_collection(
            "prompts of one length", [LENGTH_OF_COLLECTION] * number, engine, plain, setting, checks
        )
        lengths = [LENGTHS_OF_COLLECTION[i % len(LENGTHS_OF_COLLECTION)] for i in range(number)]
        setting.so_far([even], "prompts of one length")
        uneven = _measured_of_collection("prompts of 32 lengths", lengths, engine, plain, setting, checks)
    settings = {
        "shape": shape,
        "prompts": number,
        "layer": _layer(shape),
        "rounds": setting.rounds(ROUNDS_OF_COLLECTION),
    }
    return Result(benchmark="collection", settings=settings, figures=(even, uneven), checks=checks.counts)


def _layer(shape: Shape) -> int:
    return shape.layers // 2


def _measured_of_collection(
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
        readings = take_turns({"djinn": ours, "plain": theirs}, rounds=setting.rounds(ROUNDS_OF_COLLECTION))
    for one, other in zip(found, expected, strict=True):
        require_near(one, other)
        checks.same(f"rows of {what} within {TOLERANCE} of their norm", one.shape, other.shape)
    name = f"collection of {what}, of plain batches"
    return compared(name, "plain", "djinn", readings, unit=clock.unit, bar=at_least(BAR_OF_COLLECTION))


def require_near(ours: np.ndarray, theirs: np.ndarray) -> None:
    """Raise Disagreement where a row is another."""
    far = np.linalg.norm(ours - theirs, axis=1) / np.linalg.norm(theirs, axis=1)
    if not (far <= TOLERANCE).all():
        raise Disagreement(f"Row {int(far.argmax())} of the collection is {far.max():.2g} of its norm away.")


NEW_OF_ADAPTERS = 32
LENGTHS_OF_ADAPTERS = (32, 256)
ROUNDS_OF_ADAPTERS = 9
BAR_OF_ADAPTERS = 1.05
DTYPES = ("float32", "bfloat16")


def run_adapters(setting: Setting) -> Result:
    """A session with a LoRA adapter against PEFT on the same files: greedy generation, and bits of logits (fp32,
    bf16). CPU seconds of engine and client (on a GPU, seconds of the wall clock), in turns."""
    shape, checks = setting.shape(), Checks()
    settings = {
        "shape": shape,
        "lengths": LENGTHS_OF_ADAPTERS,
        "new_tokens": NEW_OF_ADAPTERS,
        "rounds": setting.rounds(ROUNDS_OF_ADAPTERS),
        "tool": TOOLS["peft"],
    }
    try:
        with _peft(setting, shape) as (theirs, folder, adapter):
            figures = _measured_of_adapters(theirs, folder, adapter, setting, checks)
            for dtype in DTYPES:
                _compare_bits(theirs, folder, adapter, dtype, setting, checks)
    except (NotRun, BaselineFailed) as why:
        figures = [Figure(name=_name(length), unit="x", value=None, not_run=str(why)) for length in LENGTHS_OF_ADAPTERS]
    return Result(benchmark="adapters", settings=settings, figures=tuple(figures), checks=checks.counts)


@contextmanager
def _peft(setting: Setting, shape: Shape) -> Iterator[tuple[Worker, str, str]]:
    """Start PEFT in its own environment; give the folders of the model and of an adapter that PEFT has saved."""
    with worker("with_peft", python_of("peft")) as theirs:
        folder = setting.saved(theirs, shape)
        adapter = str(Path(folder).with_name("adapter"))
        theirs.ask("draw", folder=folder, adapter=adapter)
        yield theirs, folder, adapter


def _measured_of_adapters(theirs: Worker, folder: str, adapter: str, setting: Setting, checks: Checks) -> list[Figure]:
    figures: list[Figure] = []
    theirs.ask("adapt", folder=folder, adapter=adapter, dtype="float32")
    with engine_of(folder, setting) as engine:
        engine.add_adapter("drawn", adapter)
        for length in LENGTHS_OF_ADAPTERS:
            figures.append(_generated_of_adapters(length, theirs, engine, setting, checks))
            setting.so_far(figures, f"up to {length} positions")
    return figures


def _generated_of_adapters(
    length: int, theirs: Worker, engine: RemoteEngine, setting: Setting, checks: Checks
) -> Figure:
    prompt = random_tokens(length, setting.shape().vocabulary)
    session = engine.session(f"tuned {length}", adapter="drawn")
    clocks = {"peft": clock_of(theirs.pid), "djinn": clock_of(os.getpid(), pid_of(engine))}
    found: dict[str, list[int]] = {}

    def ours() -> None:
        found["djinn"] = list(session.run(prompt, max_new_tokens=NEW_OF_ADAPTERS, ignore_eos=True).tokens)

    def peft() -> None:
        found["peft"] = theirs.ask("generate", tokens=prompt, new=NEW_OF_ADAPTERS)["tokens"]

    sides = {"peft": partial(clocks["peft"].of, peft), "djinn": partial(clocks["djinn"].of, ours)}
    readings = take_turns(sides, rounds=setting.rounds(ROUNDS_OF_ADAPTERS))
    checks.same(f"new tokens after {length} positions", found["djinn"], found["peft"])
    return compared(_name(length), "djinn", "peft", readings, unit=clocks["djinn"].unit, bar=at_most(BAR_OF_ADAPTERS))


def _name(length: int) -> str:
    return f"{NEW_OF_ADAPTERS} tokens after {length} with an adapter, of PEFT's time"


def _compare_bits(theirs: Worker, folder: str, adapter: str, dtype: str, setting: Setting, checks: Checks) -> None:
    """Compare the logits behind prompts bit for bit, with the adapter and, in another session, without."""
    theirs.ask("adapt", folder=folder, adapter=adapter, dtype=dtype)
    with engine_of(folder, setting, dtype=dtype) as engine:
        engine.add_adapter("drawn", adapter)
        for length in LENGTHS_OF_ADAPTERS:
            prompt = random_tokens(length, setting.shape().vocabulary)
            for kind, name in (("adapted", "drawn"), ("base", None)):
                stop = engine.session(f"{kind} {length}", adapter=name).run(prompt, max_new_tokens=1, ignore_eos=True)
                plain = theirs.ask("logits", tokens=prompt, adapted=name is not None)["digest"]
                checks.same(f"bits of logits of the {kind} session in {dtype}", digest(stop.logits), plain)


PER_WIDTH = 8  # features for each number of the residual
LENGTH_OF_FEATURES, NEW_OF_FEATURES = 16, 16
BREAKPOINTS = 256  # so many that their cost stands out from the layers' own
CALLS = 2000
ROUNDS_OF_FEATURES = 61


def run_features(setting: Setting) -> Result:
    """An SAE as a site: spliced into generation, against the same hook on the plain model; and breakpoints on single
    features that never hit, in times of one row of its encoder. CPU seconds, in turns (on a GPU, of the wall
    clock)."""
    shape, checks = setting.shape(), Checks()
    rounds, layer = setting.rounds(ROUNDS_OF_FEATURES), setting.shape().layers // 2
    prompt = random_tokens(LENGTH_OF_FEATURES, shape.vocabulary, 1)
    with worker("plain.Features") as plain:
        folder = setting.saved(plain, shape)
        sae = str(setting.home / "sae")
        plain.ask("save_sae", folder=sae, features=PER_WIDTH * shape.width)
        with engine_of(folder, setting) as engine:
            sessions = _sessions(engine, sae, layer)
            plain_clock, clock = clock_of(plain.pid), clock_of(pid_of(engine))
            sides = {
                name: partial(clock.of, partial(_generated_of_features, session, prompt))
                for name, session in sessions.items()
            }
            spliced = partial(_spliced, plain, prompt, layer)
            sides |= {
                "hook": partial(plain_clock.of, spliced),
                "rows": partial(plain_clock.of, partial(plain.ask, "row", calls=CALLS, features=BREAKPOINTS)),
            }
            checks.same("tokens of both splices", _generated_of_features(sessions["spliced"], prompt), spliced())
            after = setting.after_rounds(partial(_figures_of_features, unit=clock.unit), rounds)
            readings = take_turns(sides, rounds=rounds, after=after)
    settings = {
        "shape": shape,
        "features": PER_WIDTH * shape.width,
        "site": f"resid_post.{layer}",
        "prompt": LENGTH_OF_FEATURES,
        "new_tokens": NEW_OF_FEATURES,
        "breakpoints": BREAKPOINTS,
        "rounds": rounds,
    }
    return Result(
        benchmark="features",
        settings=settings,
        figures=_figures_of_features(readings, clock.unit),
        checks=checks.counts,
    )


def _sessions(engine: RemoteEngine, sae: str, layer: int) -> dict[str, RemoteSession]:
    """Return a session with the SAE in place of its point, one with breakpoints on features, and one with neither."""
    engine.add_module("spliced", sae, at=f"resid_post.{layer}", error_term=False)
    engine.add_module("sae", sae, at=f"resid_post.{layer}")
    sessions = {name: engine.session(name, fresh=True) for name in ("spliced", "armed", "none")}
    sessions["spliced"].steer(f"spliced.{layer}", dj.scale(1.0))
    for feature in range(BREAKPOINTS):
        sessions["armed"].breakpoint(f"sae.{layer}[{feature}]", when="value > 1e9")
    return sessions


def _generated_of_features(session: RemoteSession, prompt: list[int]) -> list[int]:
    return list(session.run(prompt, max_new_tokens=NEW_OF_FEATURES, ignore_eos=True).tokens)


def _spliced(plain: Worker, prompt: list[int], layer: int) -> list[int]:
    found: list[int] = plain.ask("generate_spliced", tokens=prompt, new=NEW_OF_FEATURES, layer=layer)["tokens"]
    return found[-NEW_OF_FEATURES:]


def _figures_of_features(readings: Readings, unit: str) -> tuple[Figure, ...]:
    met = BREAKPOINTS * NEW_OF_FEATURES
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
