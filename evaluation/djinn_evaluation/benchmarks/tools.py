"""Other tools' code on their own models and on our engine, in turns, and their values beside ours."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import numpy as np
import zmq

from djinn_evaluation.baselines.asking import BaselineFailed
from djinn_evaluation.benchmarks.environments import NotRun, peer_python
from djinn_evaluation.benchmarks.harness import (
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
    clock_of,
    engine_of,
    pid_of,
    take_turns,
    worker,
)
from djinn_evaluation.intervals import ratios
from djinn_evaluation.serving import random_tokens
from djinn_jupyter.api.engine import RemoteEngine
from djinn_jupyter.demo import MODEL_PATH
from djinn_jupyter.integrations.lines import HookedLines

BAR: Final = 1.0
NEAR: Final = 1e-3  # between logits: their attention is the same on both sides, and so are their kernels
TRIPS: Final = 9  # rounds of bare round trips
REQUEST: Final = 256  # bytes of one that carries no values
POSITIONS: Final = 16  # of each line


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """One piece of a tool's work: the verb of its worker, what that is given, and the name of its figure."""

    verb: str
    given: dict[str, Any]
    name: str

    def figure(self, clock: Clock | None, readings: dict[str, list[float]], not_run: str | None) -> Figure:
        return Figure(
            name=self.name,
            unit="x",
            value=Spread.of(ratios(readings["own"], readings["djinn"])) if readings else None,
            bar=at_least(BAR),
            sides={side: Spread.of(values) for side, values in readings.items()},
            sides_unit=None if clock is None else clock.unit,
            not_run=not_run,
        )

    def measured(self, asked: Worker, clock: Clock, rounds: int, checks: Checks) -> Figure:
        """Measure it on both sides, and compare what is found. Raises Disagreement."""
        found: dict[str, np.ndarray[Any, Any]] = {}

        def on(side: str) -> Callable[[], float]:
            def work() -> None:
                found[side] = np.array(asked.ask(self.verb, side=side, **self.given)["values"])

            return lambda: clock.of(work)

        readings = take_turns({"djinn": on("djinn"), "own": on("own")}, rounds=rounds)
        far = float(np.abs(found["djinn"] - found["own"]).max() / np.abs(found["own"]).max())
        if not far <= NEAR:
            raise Disagreement(f"{self.verb}: what is found on the engine is {far:.2g} away from the tool's own.")
        checks.same(f"shapes of what {self.verb} finds, values within {NEAR}", found["djinn"].shape, found["own"].shape)
        return self.figure(clock, readings, None)


def one_after_another(measured: Sequence[Figure], name: str) -> Figure:
    """Return the speed of all these pieces as one piece of work."""
    taken = {side: [figure.sides[side] for figure in measured] for side in ("own", "djinn")}
    seconds = {side: sum(spread.median for spread in spreads if spread) for side, spreads in taken.items()}
    return Figure(
        name=name,
        unit="x",
        value=Spread.of([seconds["own"] / seconds["djinn"]]),
        bar=at_least(BAR),
        sides={side: Spread.of([each]) for side, each in seconds.items()},
        sides_unit=measured[0].sides_unit,
    )


class BytesAcross(NamedTuple):
    """The bytes that have to cross between a notebook and an engine, `there` and `back`, so many `times`."""

    times: int
    there: int
    back: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Tool:
    """A tool whose code runs on both sides: the environment that has it, and its worker. `pair` and `lines` name the
    verbs and their figures: the first is given two lines and `of_pair` besides, the others one. `across` returns what
    has to cross in each of the others, `together` names the figure of all one after another."""

    environment: str
    worker: str
    pair: tuple[str, str]
    lines: tuple[tuple[str, str], ...]
    across: Callable[[Worker, Shape, list[int]], Sequence[BytesAcross]]
    of_pair: Mapping[str, Any] = field(default_factory=dict)
    together: str | None = None

    def measured(self, benchmark: str, setting: Setting, *, rounds: int, **settings: Any) -> Result:
        """Measure all pieces and their limits; a tool that is absent or fails gives each figure its reason."""
        shape, checks = setting.shape(), Checks()
        clean, corrupted = (random_tokens(POSITIONS, shape.vocabulary, seed) for seed in (1, 2))
        pair = {"clean": clean, "corrupted": corrupted, **self.of_pair}
        pieces = [
            Piece(verb=self.pair[0], given=pair, name=self.pair[1]),
            *(Piece(verb=verb, given={"line": clean}, name=name) for verb, name in self.lines),
        ]
        folder = setting.model(shape)
        figures: list[Figure] = []
        try:
            with engine_of(folder, setting) as engine, worker(self.worker, peer_python(self.environment)) as asked:
                asked.ask("load_both", folder=folder, threads=setting.threads)
                clock = clock_of(pid_of(engine), asked.pid)
                for piece in pieces:
                    figures.append(piece.measured(asked, clock, setting.rounds(rounds), checks))
                    setting.so_far(figures, f"up to {piece.verb}")
                across = self.across(asked, shape, clean)
                limits = [limit(figure, crossed, setting) for figure, crossed in zip(figures[1:], across, strict=True)]
                together = [one_after_another(figures, self.together)] if self.together else []
                figures += [*together, *limits]
        except (NotRun, BaselineFailed) as why:
            figures = [piece.figure(None, {}, str(why)) for piece in pieces]
        told = {"shape": shape, "positions": POSITIONS, **settings, "rounds": setting.rounds(rounds)}
        return Result(benchmark=benchmark, settings=told, figures=tuple(figures), checks=checks.counts)


def limit(measured: Figure, crossed: BytesAcross, setting: Setting) -> Figure:
    """Return a piece's best speed where passes take as long as the tool's own and bare sockets carry the bytes."""
    own, trips = measured.sides["own"], Spread.of(_bare_seconds(crossed, setting))
    assert own is not None
    assert trips is not None
    return Figure(
        name=f"limit of {measured.name}",
        unit="x",
        value=Spread.of([own.median / (own.median + trips.median)]),
        sides={
            "own": own,
            f"{crossed.times} bare round trips, {crossed.there} bytes there and {crossed.back} back": trips,
        },
        sides_unit=measured.sides_unit,
    )


def _bare_seconds(crossed: BytesAcross, setting: Setting) -> list[float]:
    endpoint, message = f"ipc://{setting.home}/bare-{crossed.times}-{crossed.back}", bytes(crossed.there)
    with worker("clients") as there, zmq.Context() as context, context.socket(zmq.DEALER) as dealer:
        there.ask("bind", endpoint=endpoint, replied=crossed.back)
        dealer.connect(endpoint)

        def cross() -> None:
            for _ in range(crossed.times):
                dealer.send(message, copy=False)
                dealer.recv(copy=False)

        cross()
        clock = clock_of(os.getpid(), there.pid)
        return [clock.of(cross) for _ in range(setting.rounds(TRIPS))]


EVERY, ROUNDS_OF_ANALYSIS = 8, 3


def run_analysis(setting: Setting) -> Result:
    """TransformerLens's analysis on our engine, against the same code on its own model: its patching function, a cache
    of all values with its attribution, a forward with a function at every layer, and the three one after another.
    CPU seconds, in turns. Of the last two pieces also the limit of an engine whose passes are as fast as their own:
    what bare round trips with the same bytes add."""
    return TRANSFORMER_LENS.measured("analysis", setting, rounds=ROUNDS_OF_ANALYSIS, patched=f"one of {EVERY}")


def _across_of_analysis(asked: Worker, shape: Shape, line: Any) -> tuple[BytesAcross, ...]:
    of_layer = POSITIONS * shape.width * 4
    return (
        BytesAcross(times=1, there=REQUEST, back=asked.ask("cached_bytes", line=line)["bytes"]),
        BytesAcross(times=shape.layers, there=of_layer, back=of_layer),
    )


TRANSFORMER_LENS = Tool(
    environment="transformer_lens",
    worker="with_transformer_lens.Analysis",
    pair=("patch_on", "patching of residuals by TransformerLens, of its own speed"),
    of_pair={"every": EVERY},
    lines=(
        ("analyse", "a cache of all values and attribution by TransformerLens, of its own speed"),
        ("hook", "a forward with a function at every layer, of TransformerLens's own speed"),
    ),
    across=_across_of_analysis,
    together="the three one after another, of TransformerLens's own speed",
)


ROUNDS_OF_TRACING = 5


def run_tracing(setting: Setting) -> Result:
    """nnsight's traces on our engine, against the same code on its own model: a residual patched in a trace for each
    layer, the outputs of all layers read, and all MLPs changed, in one trace each. CPU seconds, in turns. Of the
    last two also the limit of an engine whose passes are as fast as nnsight's own: a trace's body comes to one
    place after another."""
    return NNSIGHT.measured("tracing", setting, rounds=ROUNDS_OF_TRACING)


def _across_of_tracing(asked: Worker, shape: Shape, line: Any) -> tuple[BytesAcross, ...]:
    of_layer = POSITIONS * shape.width * 4
    return tuple(BytesAcross(times=shape.layers, there=there, back=of_layer) for there in (REQUEST, of_layer))


NNSIGHT = Tool(
    environment="nnsight",
    worker="with_nnsight.Tracing",
    pair=("patch_on", "a residual patched in a trace for each layer by nnsight, of its own speed"),
    lines=(
        ("read", "a trace that reads the output of every layer, of nnsight's own speed"),
        ("change", "a trace that changes the MLP of every layer, of nnsight's own speed"),
    ),
    across=_across_of_tracing,
)


LINE: Final = (5, 6, 7, 8, 9, 10, 11, 12)
LAYER: Final = 4
SITES: Final = ("resid_post", "attn_out", "mlp_out", "z", "pattern")
ON_DJINN: Final = "nnsight on djinn"
PEERS: Final = {"nnsight": "nnsight.Agreeing", "transformer-lens": "transformer_lens", "interp-engine": "interp_engine"}
TOLERANCE: Final = 1e-4
Values = dict[str, "np.ndarray[Any, Any]"]


def run_agreement(setting: Setting) -> Result:
    """One model, one line, five tools: values at five sites and edited logits, against plain hooks."""
    vector = np.random.default_rng(0).standard_normal(128).astype(np.float32).tolist()
    plain = _asked("plain_hooks", None, vector)
    checks, figures = Checks(), [figure_of("djinn", lambda: _djinn(setting, vector), plain)]
    for site, values in _djinn(setting, vector).items():
        checks.same("values of Djinn that are plain PyTorch's bit for bit", values.tolist(), plain[site].tolist())
    for tool, module in PEERS.items():
        figures.append(
            figure_of(tool, lambda at=tool, of=module: _asked(of, at, vector), plain)  # type: ignore[misc]
        )
    figures.append(figure_of(ON_DJINN, lambda: _on_djinn(setting, vector), plain))
    settings = {"model": "demo", "line": LINE, "layer": LAYER, "sites": SITES, "tolerance": TOLERANCE}
    return Result(benchmark="agreement", settings=settings, figures=tuple(figures), checks=checks.counts)


def figure_of(tool: str, found: Callable[[], Values], plain: Values) -> Figure:
    """Return by how much a tool differs from plain PyTorch at most, of the largest number of each value."""
    not_run, value = None, None
    try:
        theirs = found()
        value = Spread.of([max(_far(theirs[site], plain[site]) for site in plain)])
    except (NotRun, BaselineFailed) as why:
        not_run = str(why)
    return Figure(
        name=f"{tool}: values and edited logits from plain PyTorch's",
        unit="of the largest",
        value=value,
        bar=at_most(TOLERANCE),
        not_run=not_run,
    )


def _far(theirs: np.ndarray[Any, Any], ours: np.ndarray[Any, Any]) -> float:
    return float(np.abs(theirs - ours).max() / np.abs(ours).max())


def _asked(module: str, tool: str | None, vector: list[float]) -> Values:
    """Return what a worker finds, by site; `logits` as they are, `edited` where the vector is added."""
    with worker(f"with_{module}", *(() if tool is None else (peer_python(tool),))) as asked:
        asked.ask("open", folder=str(MODEL_PATH))
        looked = asked.ask("look", tokens=LINE, layer=LAYER)
        edited = asked.ask("add", tokens=LINE, layer=LAYER, vector=vector)["logits"]
    return {site: np.array(value, dtype=np.float32) for site, value in {**looked, "edited": edited}.items()}


def _djinn(setting: Setting, vector: list[float]) -> Values:
    with engine_of("demo", setting) as engine:
        lines = HookedLines(engine.channel, lambda number: _eager(engine))
        sites = {site: f"{site}.{LAYER}" for site in SITES}
        seen = lines.run([LINE], changes={}, read=sites.values())
        along = np.array(vector, dtype=np.float32)
        added = lines.run([LINE], changes={f"resid_post.{LAYER}": [lambda value: value + along]})
        assert seen.logits is not None
        assert added.logits is not None
        found = {site: seen.values[spelled][0] for site, spelled in sites.items()}
        return {**found, "logits": seen.logits[0], "edited": added.logits[0]}


def _on_djinn(setting: Setting, vector: list[float]) -> Values:
    with engine_of("demo", setting):
        return _asked("nnsight.AgreeingOnDjinn", "nnsight", vector)


def _eager(engine: RemoteEngine) -> str:
    return engine.session("agreement", fresh=True, attention="eager").name
