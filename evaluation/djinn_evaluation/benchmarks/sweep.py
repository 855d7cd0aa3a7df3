"""Activation patching over layers and positions: residuals of a clean run into a corrupted one, one at a time.

Djinn sweeps twice by one request, `fast` and `exact`, and once by verbs: it stops the corrupted run once a layer and
patches, resumes and goes back for each position. Compared with a plain loop of full forwards with hooks (bit for bit,
`fast` within a tolerance), TransformerLens's own patching function, and nnsight.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any, Literal

import numpy as np

import djinn_jupyter as dj
from djinn_evaluation.baselines.asking import BaselineFailed
from djinn_evaluation.benchmarks.environments import TOOLS, NotRun, python_of
from djinn_evaluation.benchmarks.measuring import Spread
from djinn_evaluation.benchmarks.results import Bar, Checks, Disagreement, Figure, Result, at_least
from djinn_evaluation.benchmarks.serving_engine import engine_of
from djinn_evaluation.benchmarks.setting import Setting, Shape
from djinn_evaluation.benchmarks.worker import Worker, worker
from djinn_evaluation.digest import digest
from djinn_evaluation.intervals import ratios
from djinn_evaluation.serving import random_tokens
from djinn_jupyter.api.engine import RemoteEngine
from djinn_jupyter.api.session import RemoteSession
from djinn_jupyter.api.stops import Finished, Paused
from djinn_jupyter.link.channel import expect

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
    """The tools that patch a layer: by name a function from the layer to its seconds and results. `absent` holds the
    reason for each tool that does not run."""

    patches: dict[str, Patch] = field(default_factory=dict)
    absent: dict[str, str] = field(default_factory=dict)
    prepares: list[Callable[[], object]] = field(default_factory=list)

    def add(self, asked: Worker, prompts: Mapping[str, list[int]], **verbs: str) -> None:
        self.prepares.append(lambda: asked.ask("prepare_patching", **prompts))
        for verb, name in verbs.items():
            self.patches[name] = _asking(asked, verb)


def _asking(asked: Worker, verb: str) -> Patch:
    return lambda layer: asked.ask(verb, layer=layer)


def run(setting: Setting) -> Result:
    shape, checks = setting.shape(), Checks()
    length, rounds = POSITIONS_IF_QUICK if setting.quick else POSITIONS, setting.rounds(ROUNDS)
    prompts = {name: random_tokens(length, shape.vocabulary, seed) for name, seed in (("clean", 1), ("corrupted", 2))}
    with ExitStack() as stack:
        plain = stack.enter_context(worker("plain"))
        folder = setting.saved(plain, shape)
        sides = Sides()
        sides.add(plain, prompts, patch_layer="plain", patch_layer_batched="plain, all positions as one batch")
        _add_tool(sides, "transformer_lens", stack, folder, setting, prompts, patch_layer="transformer_lens")
        _add_tool(
            sides,
            "nnsight",
            stack,
            folder,
            setting,
            prompts,
            patch_layer="nnsight",
            patch_layer_skipping="nnsight, skipping layers",
        )
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
    """Start a tool's worker; a tool that cannot be installed or started is noted in `absent` with the reason."""
    try:
        asked = stack.enter_context(worker(f"with_{tool}", python_of(tool)))
        asked.ask("load", folder=folder, shape={}, threads=setting.threads)
    except (NotRun, BaselineFailed) as error:
        sides.absent.update(dict.fromkeys(verbs.values(), str(error)))
    else:
        sides.add(asked, prompts, **verbs)


def _sweep(
    engine: RemoteEngine,
    prompts: Mapping[str, list[int]],
    shape: Shape,
    sides: Sides,
    checks: Checks,
    differences: dict[str, float],
) -> tuple[dict[str, float], list[list[float]]]:
    """Return every side's seconds for all layers, and the plain loop's values of the metric by layer; the sides take
    turns layer by layer, each time in another order."""
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
