"""The step of graphs: decode of 7B- and 13B-shaped weights by CUDA graphs, against the same engine without, plain
`generate`, and the speed at which the device can read the weights.

The sides are on the card one after the other: it has no room for all of them."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from time import monotonic
from typing import Any, Final

from djinn_evaluation.baselines.asking import Baseline, BaselineFailed, baseline
from djinn_evaluation.benchmarks.environments import NotRun
from djinn_evaluation.benchmarks.gpu.shapes import THIRTEEN, saved, scale_of, serving, shape
from djinn_evaluation.benchmarks.gpu.steps import Kept, Unfinished
from djinn_evaluation.benchmarks.harness import (
    Checks,
    Figure,
    Result,
    Setting,
    Spread,
    Stopwatch,
    at_least,
    at_most,
    worker,
)
from djinn_evaluation.intervals import ratios
from djinn_evaluation.machine import computed_on
from djinn_evaluation.serving import digest_of, finished, random_tokens
from djinn_jupyter.api.engine import RemoteEngine

SHAPES: Final = (THIRTEEN, "Llama-2-7b-hf")  # first the one that other steps have saved
PLACES: Final = (64, 1024)  # positions at the end
NEW: Final = 48
ROUNDS: Final = 5
LIKELY: Final = 200  # seconds that a shape may take; with less left it is for another turn
TIMES_GENERATE, OF_THE_SPEED = 3.0, 0.7  # the bar is the smaller of the two
ARMED: Final = 0.02  # the most that a breakpoint may cost
COPIED, COPIED_IF_QUICK = 4 << 30, 1 << 20
WITH, WITHOUT, ARMED_WITH = "by graphs", "without graphs", "by graphs, a breakpoint armed"
VLLM: Final = "vLLM"
PLAIN, SPEED = "plain generate", "the weights at the speed of a copy"
NO_GPU: Final = "CUDA graphs need a GPU"
NOT_YET: Final = "the step did not come to it"

Rates = Mapping[str, list[float]]
"""Tokens a second of each side, one a round."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompted:
    """The work that every side decodes: a prompt that NEW tokens bring to `positions`."""

    positions: int
    tokens: list[int]

    @classmethod
    def of(cls, vocabulary: int) -> list[Prompted]:
        return [cls(positions=number, tokens=random_tokens(number - NEW, vocabulary)) for number in PLACES]

    @property
    def at(self) -> str:
        return str(self.positions)


def run_graphs(setting: Setting) -> Result:
    begun, checks, figures = monotonic(), Checks(), list[Figure]()
    names = SHAPES[:1] if setting.quick else SHAPES
    shapes = {name: shape(name, scale_of(setting)) for name in names}
    kept = Kept.of("graphs", setting)
    for done, (name, config) in enumerate(shapes.items()):
        if done and name not in kept.found and monotonic() - begun > setting.seconds - LIKELY:
            raise Unfinished(f"{done} of {len(names)} shapes")
        measured = _Sides(**kept.found.get(name, {}))
        for side in measured.missing():
            side(measured, saved(config), Prompted.of(config["vocab_size"]), setting)
            measured.done.append(side.__name__)
            kept.add(name, asdict(measured))
            setting.so_far([*figures, *measured.figures(name)], f"{len(measured.done)} of 4 sides of {name}")
        checks.add(measured.checks)
        figures += measured.figures(name)
    settings = {"shapes": shapes, "new_tokens": NEW, "rounds": setting.rounds(ROUNDS)}
    return Result(benchmark="graphs", settings=settings, figures=tuple(figures), checks=checks.counts)


@dataclass(slots=True)
class _Sides:
    """A shape's findings so far: readings, tokens and bits by positions; sides that are `done`; why vLLM has none."""

    done: list[str] = field(default_factory=list)
    rates: dict[str, dict[str, list[float]]] = field(default_factory=dict)
    expected: dict[str, list[int]] = field(default_factory=dict)
    bits: dict[str, str] = field(default_factory=dict)
    checks: dict[str, int] = field(default_factory=dict)
    absent: str | None = None

    def missing(self) -> list[Callable[[_Sides, Path, list[Prompted], Setting], None]]:
        return [side for side in (_plain, _without, _with, _vllm) if side.__name__ not in self.done]

    def figures(self, name: str) -> list[Figure]:
        return [
            one for at, rates in self.rates.items() for one in _figures(f"{name} at {at} positions", rates, self.absent)
        ]

    def count(self, checks: Checks) -> None:
        checks.add(self.checks)
        self.checks = checks.counts


def _plain(found: _Sides, folder: Path, prompts: list[Prompted], setting: Setting) -> None:
    with worker("plain.Whole") as plain:
        read = plain.ask("load", model=str(folder), threads=setting.threads)["read"]
        speed = plain.ask("copy", nbytes=COPIED_IF_QUICK if setting.quick else COPIED)["rate"] / read
        for prompt in prompts:
            plain.ask("generate", tokens=prompt.tokens, new=NEW)
            done = [plain.ask("generate", tokens=prompt.tokens, new=NEW) for _ in range(setting.rounds(ROUNDS))]
            found.rates[prompt.at] = {PLAIN: [(NEW - 1) / one["decoding"] for one in done], SPEED: [speed]}
            found.expected[prompt.at] = done[-1]["tokens"]


def _without(found: _Sides, folder: Path, prompts: list[Prompted], setting: Setting) -> None:
    checks = Checks()
    with serving(folder, setting) as engine:
        for prompt in prompts:
            found.rates[prompt.at][WITHOUT] = _decoded(engine, prompt, setting, checks, found)
    found.count(checks)


def _with(found: _Sides, folder: Path, prompts: list[Prompted], setting: Setting) -> None:
    if not computed_on().startswith("cuda"):
        return
    checks = Checks()
    with serving(folder, setting, cuda_graphs=True) as engine:
        for prompt in prompts:
            decoded = partial(_decoded, engine, prompt, setting, checks, found)
            found.rates[prompt.at] |= {WITH: decoded(), ARMED_WITH: decoded(armed=True)}
        checks.same("layers that were replayed", engine.statistics().layers_replayed > 0, True)
    found.count(checks)


def _vllm(found: _Sides, folder: Path, prompts: list[Prompted], setting: Setting) -> None:
    try:
        for prompt, rates in zip(prompts, _of_vllm(folder, prompts, setting), strict=True):
            found.rates[prompt.at][VLLM] = rates
    except NotRun as why:
        found.absent = str(why)


def _of_vllm(folder: Path, prompts: list[Prompted], setting: Setting) -> list[list[float]]:
    """Return vLLM's tokens a second after each prompt, with the card to itself. NotRun where it does not run here."""
    try:
        with baseline("vllm") as vllm:
            longest = max(prompt.positions for prompt in prompts)
            loaded = vllm.ask("load", model=str(folder), dtype=None, length=longest, cpu_offload_gb=0)
            if loaded["status"] != "success":
                raise NotRun(loaded["reason"])
            return [[_by_vllm(vllm, prompt) for _ in range(setting.rounds(ROUNDS))] for prompt in prompts]
    except BaselineFailed as error:
        raise NotRun(str(error)) from None


def _by_vllm(vllm: Baseline, prompt: Prompted) -> float:
    vllm.ask("generate", tokens=prompt.tokens, new=NEW)  # from here on its cache holds the prompt, for both
    one, all_of_them = (vllm.ask("generate", tokens=prompt.tokens, new=new)["seconds"] for new in (1, NEW))
    return float((NEW - 1) / (all_of_them - one))


def _decoded(
    engine: RemoteEngine,
    prompt: Prompted,
    setting: Setting,
    checks: Checks,
    found: _Sides,
    *,
    armed: bool = False,
) -> list[float]:
    session = engine.session(f"{prompt.positions} {'armed' if armed else 'free'}", fresh=True)
    if armed:
        session.breakpoint(f"resid_post.{engine.description.layers // 2}", when="step == 9999")
    rates = []
    for _ in range(1 + setting.rounds(ROUNDS)):
        watch = Stopwatch()
        done = finished(session.run(prompt.tokens, max_new_tokens=NEW, ignore_eos=True, on_token=watch))
        checks.same("new tokens of the engine and of plain generate", list(done.tokens), found.expected[prompt.at])
        here = digest_of(done)
        checks.same("last logits, with and without graphs", here, found.bits.setdefault(prompt.at, here))
        rates.append((NEW - 1) / watch.decoding)
    return rates[1:]


def _figures(what: str, rates: Rates, absent: str | None) -> list[Figure]:
    sides: dict[str, Spread | None] = {name: Spread.of(values) for name, values in rates.items()}
    reason = None if WITH in rates else NOT_YET if computed_on().startswith("cuda") else NO_GPU
    ours, armed = rates.get(WITH, []), rates.get(ARMED_WITH, [])
    bar = min(TIMES_GENERATE * statistics.median(rates[PLAIN]), OF_THE_SPEED * statistics.median(rates[SPEED]))
    shown: dict[str, Any] = {"sides": sides, "sides_unit": "tokens/s", "not_run": reason}
    return [
        Figure(
            name=f"{what}: tokens/s by graphs, of the bar: 3 x generate, or 0.7 x weights at a copy's speed if less",
            unit="x",
            value=Spread.of(rate / bar for rate in ours),
            bar=at_least(1.0),
            **shown,
        ),
        Figure(
            name=f"{what}: tokens/s by graphs, of the same engine without",
            unit="x",
            value=Spread.of(ratios(ours, rates[WITHOUT]) if ours else ()),
            **shown,
        ),
        Figure(
            name=f"{what}: time that an armed breakpoint costs by graphs, of a token's",
            unit="x",
            value=Spread.of(1 / ratio - 1 for ratio in ratios(armed, ours)),
            bar=at_most(ARMED),
            **shown,
        ),
        Figure(
            name=f"{what}: tokens/s by graphs, of vLLM's",
            unit="x",
            value=Spread.of(ratios(ours, rates[VLLM]) if ours and VLLM in rates else ()),
            **{**shown, "not_run": reason or absent or (None if VLLM in rates else NOT_YET)},
        ),
    ]
