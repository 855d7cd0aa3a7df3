"""nnsight's traces on our engine, against the same code on its own model: a residual patched in a trace for each layer,
the outputs of all layers read, and all MLPs changed, in one trace each. CPU seconds, in turns. Of the last two also the
limit of an engine whose passes are as fast as nnsight's own: a trace's body comes to one place after another."""

from __future__ import annotations

from typing import Any, Final

from djinn_evaluation.baselines.asking import BaselineFailed
from djinn_evaluation.benchmarks.both_sides import REQUEST, BytesAcross, Piece, limit
from djinn_evaluation.benchmarks.environments import NotRun
from djinn_evaluation.benchmarks.peers import peer_python
from djinn_evaluation.benchmarks.processes import clock_of
from djinn_evaluation.benchmarks.results import Checks, Figure, Result
from djinn_evaluation.benchmarks.serving_engine import engine_of, pid_of
from djinn_evaluation.benchmarks.setting import Setting, Shape
from djinn_evaluation.benchmarks.worker import worker
from djinn_evaluation.serving import random_tokens

POSITIONS, ROUNDS = 16, 5
PEER: Final = "nnsight"


def run(setting: Setting) -> Result:
    shape, checks = setting.shape(), Checks()
    with worker("plain") as plain:
        folder = setting.saved(plain, shape)
    pieces = _pieces(shape)
    figures: list[Figure] = []
    try:
        with engine_of(folder, setting) as engine, worker("tracing", peer_python(PEER)) as asked:
            asked.ask("load", folder=folder, threads=setting.threads)
            clock = clock_of(pid_of(engine), asked.pid)
            for piece in pieces:
                figures.append(piece.measured(asked, clock, setting.rounds(ROUNDS), checks))
                setting.so_far(figures, f"up to {piece.verb}")
            of_layer = POSITIONS * shape.width * 4
            across = (
                BytesAcross(times=shape.layers, there=REQUEST, back=of_layer),
                BytesAcross(times=shape.layers, there=of_layer, back=of_layer),
            )
            figures += [limit(figure, crossed, setting) for figure, crossed in zip(figures[1:], across, strict=True)]
    except (NotRun, BaselineFailed) as why:
        figures = [piece.figure(None, {}, str(why)) for piece in pieces]
    return Result(benchmark="tracing", settings=_settings(shape, setting), figures=tuple(figures), checks=checks.counts)


def _pieces(shape: Shape) -> tuple[Piece, ...]:
    clean, corrupted = (random_tokens(POSITIONS, shape.vocabulary, seed) for seed in (1, 2))
    return (
        Piece(
            verb="patch",
            given={"clean": clean, "corrupted": corrupted},
            name="a residual patched in a trace for each layer by nnsight, of its own speed",
        ),
        Piece(
            verb="read",
            given={"line": clean},
            name="a trace that reads the output of every layer, of nnsight's own speed",
        ),
        Piece(
            verb="change",
            given={"line": clean},
            name="a trace that changes the MLP of every layer, of nnsight's own speed",
        ),
    )


def _settings(shape: Shape, setting: Setting) -> dict[str, Any]:
    return {"shape": shape, "positions": POSITIONS, "rounds": setting.rounds(ROUNDS)}
