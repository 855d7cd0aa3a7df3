"""A tool's code on its own model and on our engine, in turns: one piece of work, its speed on both sides, and the limit
of an engine whose passes are as fast as the tool's own: what bare round trips with the same bytes add."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import zmq

from djinn_evaluation.baselines.asking import BaselineFailed
from djinn_evaluation.benchmarks.environments import NotRun, peer_python
from djinn_evaluation.benchmarks.measuring import Spread, take_turns
from djinn_evaluation.benchmarks.processes import Clock, clock_of
from djinn_evaluation.benchmarks.results import Checks, Disagreement, Figure, Result, at_least
from djinn_evaluation.benchmarks.serving_engine import engine_of, pid_of
from djinn_evaluation.benchmarks.setting import Setting, Shape
from djinn_evaluation.benchmarks.worker import Worker, worker
from djinn_evaluation.intervals import ratios
from djinn_evaluation.serving import random_tokens

BAR: Final = 1.0
TOLERANCE: Final = 1e-3  # between logits: their attention is the same on both sides, and so are their kernels
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
        if not far <= TOLERANCE:
            raise Disagreement(f"{self.verb}: what is found on the engine is {far:.2g} away from the tool's own.")
        checks.same(
            f"shapes of what {self.verb} finds, values within {TOLERANCE}", found["djinn"].shape, found["own"].shape
        )
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


@dataclass(frozen=True, slots=True, kw_only=True)
class BytesAcross:
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
        """Measure all pieces and their limits; every figure has the reason where the tool is not here or fails."""
        shape, checks = setting.shape(), Checks()
        clean, corrupted = (random_tokens(POSITIONS, shape.vocabulary, seed) for seed in (1, 2))
        pair = {"clean": clean, "corrupted": corrupted, **self.of_pair}
        pieces = [
            Piece(verb=self.pair[0], given=pair, name=self.pair[1]),
            *(Piece(verb=verb, given={"line": clean}, name=name) for verb, name in self.lines),
        ]
        with worker("plain") as plain:
            folder = setting.saved(plain, shape)
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
    """Return how fast a piece could be at most on an engine whose passes take as long as the tool's own: what bare
    sockets take for the bytes that cross comes on top."""
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
