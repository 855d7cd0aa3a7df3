"""TransformerLens's analysis on our engine, against the same code on its own model: its patching function, a cache of
all values with its attribution, a forward with a function at every layer, and the three one after another. CPU seconds,
in turns. Of the last two pieces also the limit of an engine whose passes are as fast as their own: what bare round
trips with the same bytes add."""

from __future__ import annotations

from typing import Any, Final

from djinn_evaluation.baselines.asking import BaselineFailed
from djinn_evaluation.benchmarks.both_sides import REQUEST, BytesAcross, Piece, limit, one_after_another
from djinn_evaluation.benchmarks.environments import NotRun
from djinn_evaluation.benchmarks.peers import peer_python
from djinn_evaluation.benchmarks.processes import clock_of
from djinn_evaluation.benchmarks.results import Checks, Figure, Result
from djinn_evaluation.benchmarks.serving_engine import engine_of, pid_of
from djinn_evaluation.benchmarks.setting import Setting, Shape
from djinn_evaluation.benchmarks.worker import worker
from djinn_evaluation.serving import random_tokens

POSITIONS, EVERY, ROUNDS = 16, 8, 3
PEER: Final = "transformer-lens"
ALL: Final = "the three one after another, of TransformerLens's own speed"


def run(setting: Setting) -> Result:
    shape, checks = setting.shape(), Checks()
    with worker("plain") as plain:
        folder = setting.saved(plain, shape)
    pieces = _pieces(shape)
    figures: list[Figure] = []
    try:
        with engine_of(folder, setting) as engine, worker("analysing", peer_python(PEER)) as asked:
            asked.ask("load", folder=folder, threads=setting.threads)
            clock = clock_of(pid_of(engine), asked.pid)
            for piece in pieces:
                figures.append(piece.measured(asked, clock, setting.rounds(ROUNDS), checks))
                setting.so_far(figures, f"up to {piece.verb}")
            values = asked.ask("cached_bytes", **pieces[-1].given)["bytes"]
            of_layer = POSITIONS * shape.width * 4
            across = (
                BytesAcross(times=1, there=REQUEST, back=values),
                BytesAcross(times=shape.layers, there=of_layer, back=of_layer),
            )
            limits = [limit(figure, crossed, setting) for figure, crossed in zip(figures[1:], across, strict=True)]
            figures += [one_after_another(figures, ALL), *limits]
    except (NotRun, BaselineFailed) as why:
        figures = [piece.figure(None, {}, str(why)) for piece in pieces]
    return Result(
        benchmark="analysis", settings=_settings(shape, setting), figures=tuple(figures), checks=checks.counts
    )


def _pieces(shape: Shape) -> tuple[Piece, ...]:
    clean, corrupted = (random_tokens(POSITIONS, shape.vocabulary, seed) for seed in (1, 2))
    pair = {"clean": clean, "corrupted": corrupted, "every": EVERY}
    return (
        Piece(verb="patch", given=pair, name="patching of residuals by TransformerLens, of its own speed"),
        Piece(
            verb="analyse",
            given={"line": clean},
            name="a cache of all values and attribution by TransformerLens, of its own speed",
        ),
        Piece(
            verb="hook",
            given={"line": clean},
            name="a forward with a function at every layer, of TransformerLens's own speed",
        ),
    )


def _settings(shape: Shape, setting: Setting) -> dict[str, Any]:
    return {"shape": shape, "positions": POSITIONS, "patched": f"one of {EVERY}", "rounds": setting.rounds(ROUNDS)}
