"""32 continuations at once, in mode `fast`, against plain batched `generate`: samples of one prompt, and prompts of one
length and of 32 lengths. CPU seconds of the process that computes, in turns."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter
from typing import Any

from benchmarks.measuring import Spread, ratios, take_turns
from benchmarks.processes import UNSAID, Computing
from benchmarks.results import Checks, Figure, Result, at_least
from benchmarks.serving_engine import engine_of, pid_of
from benchmarks.setting import Setting
from benchmarks.worker import worker
from djinn_jupyter.client.session import RemoteSession
from djinn_jupyter.experiments.serving import random_tokens

ROWS, NEW, LENGTH, SHORTEST = 32, 20, 16, 4
ROUNDS = 5
BAR = 0.95
Side = Callable[[], list[list[int]]]


def run(setting: Setting) -> Result:
    shape, checks = setting.shape(), Checks()
    rows = 4 if setting.quick else ROWS
    same = [random_tokens(LENGTH, shape.vocabulary, seed) for seed in range(rows)]
    ragged = [random_tokens(SHORTEST + i, shape.vocabulary, i) for i in range(rows)]
    figures = []
    with worker("plain") as plain:
        folder = setting.saved(plain, shape)
        with engine_of(folder, setting) as engine:
            session = engine.session("batches", fresh=True)
            computing = {"plain": Computing(plain.pid), "djinn": Computing(pid_of(engine))}
            cases: dict[str, tuple[Side, Side]] = {
                f"{rows} samples of one prompt": (
                    lambda: plain.ask("sample_batched", tokens=same[0], new=NEW, rows=rows)["tokens"],
                    lambda: _rows(session, checks, same[0], samples=rows, temperature=1.0),
                ),
                f"{rows} prompts of one length": (
                    lambda: plain.ask("generate_batched", prompts=same, new=NEW)["tokens"],
                    lambda: _rows(session, checks, same),
                ),
                f"{rows} prompts of {rows} lengths": (
                    lambda: plain.ask("generate_batched", prompts=ragged, new=NEW)["tokens"],
                    lambda: _rows(session, checks, ragged),
                ),
            }
            for name, (theirs, ours) in cases.items():
                figures.append(_figure(name, theirs, ours, computing, setting.rounds(ROUNDS), checks))
    settings = {"shape": shape, "rows": rows, "new_tokens": NEW, "rounds": setting.rounds(ROUNDS)}
    return Result(benchmark="batches", settings=settings, figures=tuple(figures), checks=checks.counts)


def _rows(session: RemoteSession, checks: Checks, prompt: Any, **options: Any) -> list[list[int]]:
    rows: list[Any] = session.run(prompt, max_new_tokens=NEW, ignore_eos=True, mode="fast", **options)
    checks.same("batches of rows that shared passes", all(row.shared and row.note is None for row in rows), True)
    return [list(row.tokens) for row in rows]


def _figure(
    name: str, theirs: Side, ours: Side, computing: dict[str, Computing], rounds: int, checks: Checks
) -> Figure:
    made: dict[str, list[list[int]]] = {}
    for one in computing.values():
        one.readings.clear()

    def timed(side: str, work: Side) -> float:
        computing[side].begin()
        begun = perf_counter()
        made[side] = work()
        seconds = perf_counter() - begun
        computing[side].end()
        return seconds

    take_turns({"plain": lambda: timed("plain", theirs), "djinn": lambda: timed("djinn", ours)}, rounds=rounds)
    if "samples" not in name:  # generators of their own draw other samples
        checks.same(f"new tokens of {name}", made["djinn"], made["plain"])
    seconds = {side: one.readings[-rounds:] for side, one in computing.items()}
    said = all(seconds.values())
    return Figure(
        name=f"{name}, of plain batched generate",
        unit="x",
        value=Spread.of(ratios(seconds["plain"], seconds["djinn"])) if said else None,
        bar=at_least(BAR),
        sides={side: Spread.of(values) for side, values in seconds.items()},
        sides_unit="s computed",
        not_run=None if said else UNSAID,
    )
