"""Activation patching and attribution by one request, against plain PyTorch, TransformerLens and nnsight."""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from time import perf_counter
from typing import Any, Literal

import numpy as np

import djinn_jupyter as dj
from djinn_evaluation.baselines.asking import BaselineFailed, digest
from djinn_evaluation.benchmarks.environments import TOOLS, NotRun, python_of
from djinn_evaluation.benchmarks.harness import (
    Bar,
    Checks,
    Clock,
    Disagreement,
    Figure,
    Result,
    Setting,
    Shape,
    Spread,
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
from djinn_jupyter.api.stops import Finished, Paused
from djinn_jupyter.link.channel import expect
from djinn_jupyter.methods.sweep.api.grid import Grid

POSITIONS, POSITIONS_IF_QUICK = 16, 4  # as long as the sentences that are usually patched
ROUNDS = 3
TOLERANCE = 1e-2  # between logits of tools that do not promise the same bits
METRIC, MEASURED = "logit(3)", 3  # one of the logits that every side replies with
OURS = ("djinn", "exact", "fast")
BARS: dict[tuple[str, str], Bar | None] = {
    ("djinn", "plain"): at_least(1.7),
    ("djinn", "plain, all positions as one batch"): None,
    ("djinn", "transformer_lens"): at_least(3.0),
    ("djinn", "nnsight"): None,
    ("djinn", "nnsight, skipping layers"): None,
    ("exact", "plain"): at_least(1.7),
    ("fast", "plain"): None,
    ("fast", "plain, all positions as one batch"): None,
    ("fast", "transformer_lens"): at_least(12.0),
    ("fast", "nnsight"): None,
}
SAID = {"djinn": "residual patch sweep", "exact": "sweep by one request, exact", "fast": "sweep by one request, fast"}

Patch = Callable[[int], dict[str, Any]]


@dataclass(slots=True)
class Sides:
    """The tools that patch a layer: functions from the layer to seconds and results; reasons of absent tools."""

    patches: dict[str, Patch] = field(default_factory=dict)
    absent: dict[str, str] = field(default_factory=dict)
    prepares: list[Callable[[], object]] = field(default_factory=list)

    def add(self, asked: Worker, prompts: Mapping[str, list[int]], **verbs: str) -> None:
        self.prepares.append(lambda: asked.ask("prepare_patching", **prompts))
        for verb, name in verbs.items():
            self.patches[name] = _asking(asked, verb)


def _asking(asked: Worker, verb: str) -> Patch:
    return lambda layer: asked.ask(verb, layer=layer)


def run_sweep(setting: Setting) -> Result:
    """Activation patching over layers and positions: residuals of a clean run into a corrupted one, one at a time.

    Djinn sweeps twice by one request, `fast` and `exact`, and once by verbs: it stops the corrupted run once a
    layer and patches, resumes and goes back for each position. Compared with a plain loop of full forwards with
    hooks (bit for bit, `fast` within a tolerance), TransformerLens's own patching function, and nnsight."""
    shape, checks = setting.shape(), Checks()
    length, rounds = POSITIONS_IF_QUICK if setting.quick else POSITIONS, setting.rounds(ROUNDS)
    prompts = {name: random_tokens(length, shape.vocabulary, seed) for name, seed in (("clean", 1), ("corrupted", 2))}
    with ExitStack() as stack:
        plain = stack.enter_context(worker("plain"))
        folder = setting.saved(plain, shape)
        sides = Sides()
        sides.add(plain, prompts, patch_layer="plain", patch_layer_batched="plain, all positions as one batch")
        _add_tool(sides, "transformer_lens", stack, folder, setting, prompts, patch_layer="transformer_lens")
        verbs = {"patch_layer": "nnsight", "patch_layer_skipping": "nnsight, skipping layers"}
        _add_tool(sides, "nnsight", stack, folder, setting, prompts, **verbs)
        engine = stack.enter_context(engine_of(folder, setting))
        for prepare in sides.prepares:
            prepare()
        seconds: dict[str, list[float]] = {name: [] for name in (*OURS, *sides.patches)}
        differences: dict[str, float] = {}
        for number in range(rounds + 1):
            totals, plain_values = _sweep(engine, prompts, shape, sides, checks, differences)
            for mode in ("exact", "fast"):
                totals[mode] = _requested(engine, prompts, mode, plain_values, checks, differences)
            if number:  # the first is to warm up
                for name, total in totals.items():
                    seconds[name].append(total)
                setting.so_far(_figures(seconds, sides.absent), f"{number} of {rounds} rounds")
    settings = {
        "shape": shape,
        "positions": length,
        "patches": shape.layers * length,
        "rounds": rounds,
        "versions": {name: TOOLS[name] for name in ("transformer_lens", "nnsight")},
        "largest_difference_of_logits_from_plain": differences,
    }
    figures = tuple(_figures(seconds, sides.absent))
    return Result(benchmark="sweep", settings=settings, figures=figures, checks=checks.counts)


def _add_tool(
    sides: Sides,
    tool: str,
    stack: ExitStack,
    folder: str,
    setting: Setting,
    prompts: Mapping[str, list[int]],
    **verbs: str,
) -> None:
    asked = _started(tool, stack, folder, setting)
    if isinstance(asked, str):
        sides.absent.update(dict.fromkeys(verbs.values(), asked))
    else:
        sides.add(asked, prompts, **verbs)


def _started(tool: str, stack: ExitStack, folder: str, setting: Setting) -> Worker | str:
    """Start a tool's worker; the reason stands in its place where it cannot be installed or started."""
    try:
        asked = stack.enter_context(worker(f"with_{tool}", python_of(tool)))
        asked.ask("load", folder=folder, shape={}, threads=setting.threads)
    except (NotRun, BaselineFailed) as why:
        return str(why)
    return asked


def _sweep(
    engine: RemoteEngine,
    prompts: Mapping[str, list[int]],
    shape: Shape,
    sides: Sides,
    checks: Checks,
    differences: dict[str, float],
) -> tuple[dict[str, float], list[list[float]]]:
    """Return every side's seconds for all layers in turns, and the plain loop's values by layer."""
    values: list[list[float]] = []
    totals = dict.fromkeys(("djinn", *sides.patches), 0.0)
    ours = _djinn(engine, prompts)
    for layer in range(shape.layers):
        found: dict[str, dict[str, Any]] = {}
        patches: dict[str, Patch] = {"djinn": lambda _: next(ours), **sides.patches}
        names = list(patches)
        for name in names[layer % len(names) :] + names[: layer % len(names)]:
            found[name] = patches[name](layer)
            totals[name] += found[name]["seconds"]
        _compare(found, checks, differences)
        values.append([row[MEASURED] for row in found["plain"]["rows"]])
    ours.close()
    return totals, values


def _requested(
    engine: RemoteEngine,
    prompts: Mapping[str, list[int]],
    mode: Literal["fast", "exact"],
    plain_values: list[list[float]],
    checks: Checks,
    differences: dict[str, float],
) -> float:
    """Return the seconds of the same sweep as one request. Requires that `exact` gives the plain loop's bits."""
    begun = perf_counter()
    grid = dj.sweep(
        engine,
        clean=prompts["clean"],
        corrupted=prompts["corrupted"],
        site="resid_post",
        over="layer,position",
        metric=METRIC,
        mode=mode,
    )
    seconds = perf_counter() - begun
    far = float(np.abs(grid.values - np.array(plain_values)).max())
    if mode == "exact":
        checks.same("an exact sweep's values those of the plain loop", far, 0.0)
    elif grid.mode != "fast" or far > TOLERANCE:
        raise Disagreement(f"The fast sweep ran as {grid.mode} and differs from the plain loop by {far}.")
    differences[mode] = max(far, differences.get(mode, 0.0))
    return seconds


def _djinn(engine: RemoteEngine, prompts: Mapping[str, list[int]]) -> Generator[dict[str, Any], None, None]:
    """Yield one layer's result at a time. A layer's seconds include the run or step that reaches it."""
    begun = perf_counter()
    clean, corrupted = (_stopped(engine, name, tokens) for name, tokens in prompts.items())
    while True:
        found = [_patched(corrupted, clean.name, row) for row in range(len(prompts["clean"]))]
        yield {"seconds": perf_counter() - begun, "digests": [digest(logits) for logits in found]}
        begun = perf_counter()
        for session in (clean, corrupted):
            session.step()


def _stopped(engine: RemoteEngine, name: str, tokens: list[int]) -> RemoteSession:
    session = engine.session(name, fresh=True)
    session.breakpoint("resid_post.0", once=True)
    expect(session.run(tokens, max_new_tokens=0), Paused)
    return session


def _patched(corrupted: RemoteSession, clean: str, position: int) -> Any:
    corrupted.edit(dj.patch_from(clean), positions=position)
    logits = expect(corrupted.resume(free=True), Finished).logits
    corrupted.back()
    return logits


def _compare(found: Mapping[str, dict[str, Any]], checks: Checks, differences: dict[str, float]) -> None:
    """Require that Djinn's bits equal the plain loop's, and that the other tools' logits are within TOLERANCE."""
    plain = found["plain"]
    for ours, theirs in zip(found["djinn"]["digests"], plain["digests"], strict=True):
        checks.same("patches bit for bit those of the plain loop", ours, theirs)
    for name, answer in found.items():
        if "rows" not in answer:
            continue
        pairs = zip(answer["rows"], plain["rows"], strict=True)
        far = max(abs(a - b) for row, other in pairs for a, b in zip(row, other, strict=True))
        if far > TOLERANCE:
            raise Disagreement(f"{name} computes other logits than the plain loop, by {far}.")
        differences[name] = max(far, differences.get(name, 0.0))


def _figures(seconds: Mapping[str, list[float]], absent: Mapping[str, str]) -> Iterator[Figure]:
    for (ours, name), bar in BARS.items():
        measured = seconds.get(name, [])
        yield Figure(
            name=f"{SAID[ours]}, of {name}",
            unit="x",
            value=Spread.of(ratios(measured, seconds[ours][: len(measured)])),
            bar=bar,
            sides={ours: Spread.of(seconds[ours]), name: Spread.of(measured)},
            sides_unit="s",
            not_run=absent.get(name),
        )


LATE = 10
PAIRS, PAIRS_IF_QUICK = 20, 2
ROUNDS_OF_PAIRS = 1  # twenty pairs take TransformerLens minutes,
PART = 4  # so its loop over them, whose cells all cost the same, is timed at every fourth layer
SENDER_SECONDS = 2.0
THEIRS = "transformer_lens"


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A site to patch, and its axes. `bars` are by the position from which on the lines of a pair differ."""

    name: str
    site: str
    over: tuple[str, ...]
    bars: dict[int, float]
    many: bool = False

    @property
    def rounds(self) -> int:
        return ROUNDS_OF_PAIRS if self.many else ROUNDS

    def named(self, first: int) -> str:
        return self.name if first == 0 else f"{self.name}, the same up to position {first}"

    def lines(self, first: int, shape: Shape, *, quick: bool) -> dict[str, list[list[int]]]:
        """Return the clean and the corrupted lines, of random tokens, which differ from `first` on."""
        pairs = range((PAIRS_IF_QUICK if quick else PAIRS) if self.many else 1)
        clean, other = ([random_tokens(POSITIONS, shape.vocabulary, at + n) for n in pairs] for at in (1, 101))
        corrupted = [one[:first] + two[first:] for one, two in zip(clean, other, strict=True)]
        return {"clean": clean, "corrupted": corrupted}


RESIDUALS, HEADS = ("resid_post", ("layer", "position")), ("z", ("layer", "head"))
CASES = tuple(
    Case(name=name, site=site, over=over, many=many, bars=bars)
    for name, (site, over), many, bars in (
        ("residuals of one pair", RESIDUALS, False, {0: 12.0, LATE: 25.0}),
        ("heads of one pair", HEADS, False, {0: 8.0, LATE: 16.0}),
        ("residuals of many pairs", RESIDUALS, True, {0: 8.0, LATE: 25.0}),
    )
)


def run_patching(setting: Setting) -> Result:
    """Sweeps of activation patching by one request, in mode `fast`: one pair of lines and many, lines that differ
    late, and heads, against TransformerLens's own patching function with all pairs in its batch; and paths from
    every head. CPU seconds (on a GPU, seconds of the wall clock), in turns."""
    shape, checks = setting.shape(), Checks()
    figures: list[Figure] = []
    folder = setting.model(shape)
    with ExitStack() as stack, engine_of(folder, setting) as engine:
        theirs = _started(THEIRS, stack, folder, setting)
        clock = clock_of(pid_of(engine), os.getpid())
        for receivers in ("logits", f"q.{shape.layers - 1}[0], k.{shape.layers - 1}[0]"):
            figures.append(_senders(engine, receivers, shape, clock, setting, checks))
            setting.so_far(figures, f"up to paths into {receivers}")
        for case in CASES:
            figures += _measured_of_patching(case, engine, theirs, shape, clock, setting, checks)
            setting.so_far(figures, f"up to {case.name}")
    settings = {
        "shape": shape,
        "positions": POSITIONS,
        "pairs": PAIRS_IF_QUICK if setting.quick else PAIRS,
        "rounds": setting.rounds(ROUNDS),
        "rounds_of_pairs": ROUNDS_OF_PAIRS,
        "layers_at_which_their_loop_over_pairs_is_timed": f"one of {PART}",
        "versions": {THEIRS: TOOLS[THEIRS]},
    }
    return Result(benchmark="patching", settings=settings, figures=tuple(figures), checks=checks.counts)


def _measured_of_patching(
    case: Case, engine: RemoteEngine, theirs: Worker | str, shape: Shape, clock: Clock, setting: Setting, checks: Checks
) -> list[Figure]:
    """Measure our sweeps of lines that differ from each position on, and their one loop, in turns."""
    lines = {first: case.lines(first, shape, quick=setting.quick) for first in case.bars}
    found = dict[int | str, np.ndarray]()

    def ours(first: int) -> Callable[[], float]:
        return lambda: clock.of(lambda: found.update({first: _swept(case, engine, lines[first], checks)}))

    sides = {case.named(first): ours(first) for first in case.bars}
    if not isinstance(theirs, str):
        sides[THEIRS] = _theirs(case, theirs, lines[0], found)
    readings = take_turns(sides, rounds=setting.rounds(case.rounds), warm_up=0)
    _check(case, engine, shape, lines, found, checks)
    not_run, loop = (theirs, []) if isinstance(theirs, str) else (None, readings[THEIRS])
    return [
        Figure(
            name=f"sweep of {case.named(first)}, of {THEIRS}",
            unit="x",
            value=Spread.of(ratios(loop, readings[case.named(first)][: len(loop)])),
            bar=at_least(bar),
            sides={case.named(first): Spread.of(readings[case.named(first)]), THEIRS: Spread.of(loop)},
            sides_unit=clock.unit,
            not_run=not_run,
        )
        for first, bar in case.bars.items()
    ]


def _theirs(
    case: Case, theirs: Worker, lines: dict[str, list[list[int]]], found: dict[int | str, np.ndarray]
) -> Callable[[], float]:
    clock = clock_of(theirs.pid)

    def patch() -> None:
        asked = {"site": case.site, "token": MEASURED, "every": PART if case.many else 1}
        found[THEIRS] = np.array(theirs.ask("patch", **asked, **lines)["values"])

    return lambda: clock.of(patch) * (PART if case.many else 1)


def _check(
    case: Case,
    engine: RemoteEngine,
    shape: Shape,
    lines: dict[int, dict[str, list[list[int]]]],
    found: dict[int | str, np.ndarray],
    checks: Checks,
) -> None:
    """Compare what was swept with what they found, and the first pair of what they did not run with exact cells."""
    for first, swept in found.items():
        if first == THEIRS:
            mine = found[0].reshape(found[0].shape[0], shape.layers, -1)[:, :: PART if case.many else 1]
            require_near(case.name, mine.reshape(swept.shape), swept)
        elif first != 0:
            pair = {side: given[0] for side, given in lines[int(first)].items()}
            exact = dj.sweep(engine, site=case.site, over=case.over, metric=METRIC, mode="exact", **pair)
            require_near(case.named(int(first)), swept[0], exact.values.reshape(-1))
        checks.same(f"cells of {case.name} within {TOLERANCE}", swept.shape[0], len(lines[0]["clean"]))


def _swept(case: Case, engine: RemoteEngine, lines: dict[str, list[list[int]]], checks: Checks) -> np.ndarray:
    """Return the metric of every cell, a row for each pair."""
    grid = dj.sweep(engine, site=case.site, over=case.over, metric=METRIC, mode="fast", **lines)
    require_fast(grid, checks)
    return grid.values.reshape(len(lines["clean"]), -1)


def _senders(
    engine: RemoteEngine, receivers: str, shape: Shape, clock: Clock, setting: Setting, checks: Checks
) -> Figure:
    """Measure the paths from every head into these receivers; compare those from one layer with exact ones."""
    clean, corrupted = (random_tokens(POSITIONS, shape.vocabulary, seed) for seed in (1, 2))
    found: list[Grid] = []

    def ours() -> float:
        lines = {"clean": clean, "corrupted": corrupted}
        return clock.of(lambda: found.append(dj.path(engine, f"z -> {receivers}", metric=METRIC, **lines)))

    readings = take_turns({"djinn": ours}, rounds=setting.rounds(ROUNDS))
    require_fast(found[-1], checks)
    layer = shape.layers // 2
    exact = dj.path(engine, f"z.{layer} -> {receivers}", clean=clean, corrupted=corrupted, metric=METRIC, mode="exact")
    require_near(f"paths into {receivers}", found[-1].values[layer], exact.values)
    checks.same(f"paths from a layer into {receivers} within {TOLERANCE}", exact.values.shape, (shape.heads,))
    count = shape.layers * shape.heads
    return Figure(
        name=f"paths from all {count} heads into {receivers}",
        unit=clock.unit,
        value=Spread.of(readings["djinn"]),
        bar=at_most(SENDER_SECONDS),
    )


def require_fast(grid: Grid, checks: Checks) -> None:
    """Require that no pair was swept cell by cell in place of together."""
    checks.same("sweeps in mode fast", {one.mode for one in grid.replies}, {"fast"})


def require_near(what: str, ours: np.ndarray, theirs: np.ndarray) -> None:
    """Require that no cell differs by more than TOLERANCE. Raises Disagreement."""
    far = float(np.abs(ours - theirs).max())
    if not far <= TOLERANCE:
        raise Disagreement(f"The {what}: a cell is {far:.2g} away from the other side's.")


LENGTHS = (16, 128)
ROUNDS_OF_ATTRIBUTION = 5
BAR = 1.1
TOKEN = 3
TOLERANCE_OF_ATTRIBUTION = 1e-3  # of the norm of all scores: float32, summed in another order


def run_attribution(setting: Setting) -> Result:
    """Attribution patching by one request against plain PyTorch: two forwards and a backward with hooks, for residuals
    by layer and position. CPU seconds of engine and client (on a GPU, seconds of the wall clock), in turns."""
    shape, checks = setting.shape(), Checks()
    figures: list[Figure] = []
    with both_sides(shape, setting) as (plain, engine):
        clocks = {"plain": clock_of(plain.pid), "djinn": clock_of(os.getpid(), pid_of(engine))}
        for length in LENGTHS:
            clean, corrupted = (random_tokens(length, shape.vocabulary, seed) for seed in (1, 2))
            figures.append(_measured_of_attribution(clean, corrupted, plain, engine, clocks, setting, checks))
            setting.so_far(figures, f"up to {length} positions")
    settings = {"shape": shape, "lengths": LENGTHS, "rounds": setting.rounds(ROUNDS_OF_ATTRIBUTION)}
    return Result(benchmark="attribution", settings=settings, figures=tuple(figures), checks=checks.counts)


def _measured_of_attribution(
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
    readings = take_turns(sides, rounds=setting.rounds(ROUNDS_OF_ATTRIBUTION))
    far = float(np.linalg.norm(found["djinn"] - found["plain"]) / np.linalg.norm(found["plain"]))
    if not far <= TOLERANCE_OF_ATTRIBUTION:
        raise Disagreement(f"The scores of {len(clean)} positions are {far:.2g} of their norm away from plain ones.")
    checks.same(f"scores within {TOLERANCE_OF_ATTRIBUTION}", found["djinn"].shape, found["plain"].shape)
    name = f"attribution of residuals of {len(clean)} positions, of two forwards and a backward"
    return compared(name, "djinn", "plain", readings, unit=clocks["djinn"].unit, bar=at_most(BAR))
