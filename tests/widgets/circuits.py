"""Circuits for cards: the strongest of the edges of `edged`, run on two pairs."""

from __future__ import annotations

from dataclasses import asdict

from djinn_jupyter.methods.circuits.api.circuits import Circuit, CircuitCurve, Interval
from djinn_jupyter.methods.circuits.request import CircuitRecipe, CircuitsRun, RunCircuits
from tests.magics.methods import PROVENANCE
from tests.widgets import edged

DRAWN = Interval(confidence=0.95, resamples=1000, seed=0)
SHARES = (0.5, 0.8)  # of the way from the corrupted line to the clean one, of each pair


def circuit(count: int = 9, shares: tuple[float, ...] = SHARES) -> Circuit:
    found = edged.found()
    chosen = found.top(count)
    numbers = tuple(found.numbers((writer, reader) for writer, reader, _ in chosen))
    asked = RunCircuits(session="edges", corrupted=(1, 2, 3), clean=(1, 2, 4), metric="m", circuits=(numbers,))
    replies = [
        CircuitsRun(
            metric="m",
            writers=found.writers,
            readers=found.readers,
            values=(-1.0 + 3.0 * share,),
            corrupted=-1.0,
            clean=2.0,
            made=CircuitRecipe(asked=asked, attention=None, by=PROVENANCE),
        )
        for share in shares
    ]
    scores = [score for *_, score in chosen]
    stop = edged.STOP if len(shares) == 1 else None
    told = {"how": "the largest scores", "stop": stop, "engine": "demo-1"}
    return Circuit(replies, scores=scores, of=len(found), **asdict(DRAWN), **told)


def curve() -> CircuitCurve:
    shares = ((0.1, 0.3), (0.5, 0.8), (1.0, 1.0))
    return CircuitCurve([circuit(n, each) for n, each in zip((5, 9, 46), shares, strict=True)], (0.1, 0.2, 1.0))
