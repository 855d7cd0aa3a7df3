"""Agents on real engines at the corners of the grid of `crowds`: the least recently used order against the default,
and an engine with room for all of them, whose turns wait for the processor alone: no order waits less.

Each crowd is written as it ends, and a run that was cut goes on behind the last one. The replay's prediction, with the
costs measured at the beginning, stands beside.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from time import monotonic
from typing import Any, Final

import msgspec

from djinn_evaluation.agents.crowd import CrowdRecord, together
from djinn_evaluation.agents.quantiles import PERCENTS, percentile, ratios_of
from djinn_evaluation.agents.replay import bandwidth
from djinn_evaluation.agents.replay.crowds import MEMORY, PAUSES, TurnCosts, crowd_file, room
from djinn_evaluation.agents.rows import after_pauses, moves, per_token
from djinn_evaluation.agents.script import scripts
from djinn_evaluation.agents.ways import WAYS
from djinn_evaluation.benchmarks import results
from djinn_evaluation.benchmarks.crowds import DEFAULT, LRU, RULES, Cell, engine_with, measured_on, played
from djinn_evaluation.benchmarks.measuring import Spread
from djinn_evaluation.benchmarks.results import Checks, Figure, Result
from djinn_evaluation.benchmarks.setting import Setting
from djinn_evaluation.course import Course
from djinn_jupyter.api.engine import RemoteEngine

REPETITIONS: Final = 6
RESAMPLES: Final = 1000
ROOMY: Final = "room for all"
ROOMY_REPETITIONS: Final = 2
SIDES: Final[Mapping[str, tuple[str, str]]] = {LRU: ("lru", LRU), "default": ("hinted", DEFAULT), ROOMY: ("lru", LRU)}
"""By side: the engine's way, and the rule of the replay that it is."""
SECONDS: Final = {8: 5.5, 24: 6.5, 80: 20.0}  # of a crowd on quiet cores
Parts = dict[tuple[str, str, int], dict[str, Any]]  # by cell, side and repetition


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Cells that one pair of engines serves."""

    agents: int
    memory: str
    pauses: tuple[str, ...]
    repetitions: int

    def cells(self) -> list[Cell]:
        return [Cell(agents=self.agents, pauses=each, prompts="own", memory=self.memory) for each in self.pauses]


def groups(setting: Setting) -> list[Group]:
    """Return the four corners with both kinds of pauses, and the large crowd once."""
    both = ("tool calls", "heavy tails")
    if setting.quick:
        return [Group(agents=8, memory="a third", pauses=both[:1], repetitions=1)]
    corners = product((8, 24), ("a tenth", "a third"))
    four = [Group(agents=count, memory=memory, pauses=both, repetitions=REPETITIONS) for count, memory in corners]
    return [*four, Group(agents=80, memory="a third", pauses=both[:1], repetitions=1)]


def run(setting: Setting) -> Result:
    kept = results.HERE / ("quick" if setting.quick else "") / "corners.parts"
    kept.parent.mkdir(exist_ok=True)
    asked = groups(setting)
    parts, costs = _begun(kept)
    left = [group for group in asked if any(key not in parts for key in _keys(group))]
    seconds = sum(SECONDS[group.agents] for group in left for key in _keys(group) if key not in parts)
    print(f"  about {seconds / 60:.0f} minutes on quiet cores; {len(parts) - 1} crowds are there", flush=True)
    begun = monotonic()
    for group in left:
        _measure(group, costs, parts, kept)
        print(f"  {group.agents} agents, memory for {group.memory}: {monotonic() - begun:.0f} s", flush=True)
    link, checks = bandwidth.memory(), Checks()
    rows = {str(cell): _rows(cell, group, parts, costs, link, checks) for group in asked for cell in group.cells()}
    figures = [
        figure for group in asked for cell in group.cells() for figure in _figures(cell, group, parts, rows[str(cell)])
    ]
    kept.unlink()
    settings = {"costs": asdict(costs), "weight_bytes": _weights(parts), "bytes_per_second": link, "cells": rows}
    return Result(benchmark="corners", settings=settings, figures=tuple(figures), checks=checks.counts)


def _keys(group: Group) -> list[tuple[str, str, int]]:
    """Return the crowds of a group in their order: the sides change places from one repetition to the next."""
    found = []
    for cell, number in product(group.cells(), range(group.repetitions)):
        sides = list(SIDES) if number % 2 == 0 else [*reversed(SIDES)]
        found += [(str(cell), side, number) for side in sides if number < _repetitions(side, group)]
    return found


def _repetitions(side: str, group: Group) -> int:
    return min(group.repetitions, ROOMY_REPETITIONS) if side == ROOMY else group.repetitions


def _begun(kept: Path) -> tuple[Parts, TurnCosts]:
    """Return the crowds of a run that was cut, and its costs; or measure these."""
    lines = [json.loads(line) for line in kept.read_text().splitlines()] if kept.exists() else []
    if not lines:
        with engine_with("lru", None) as engine:
            lines = [{"costs": asdict(measured_on(engine)), "weights": engine.statistics().weight_bytes}]
        _keep(kept, lines[0])
    parts: Parts = {(line["cell"], line["side"], line["repetition"]): line for line in lines[1:]}
    parts["", "", 0] = lines[0]
    return parts, msgspec.convert(lines[0]["costs"], TurnCosts)


def _weights(parts: Parts) -> int:
    return int(parts["", "", 0]["weights"])


def _keep(kept: Path, line: Mapping[str, Any]) -> None:
    with kept.open("a") as file:
        file.write(json.dumps(line) + "\n")


def _measure(group: Group, costs: TurnCosts, parts: Parts, kept: Path) -> None:
    file = crowd_file("tool", shared=False, count=group.agents)
    limit = _weights(parts) + room(file, group.agents, MEMORY[group.memory], costs)
    cells = {str(cell): cell for cell in group.cells()}
    with ExitStack() as stack:
        engines = {
            side: stack.enter_context(engine_with(way, None if side == ROOMY else limit, number))
            for number, (side, (way, _)) in enumerate(SIDES.items(), 1)
        }
        for name, side, number in _keys(group):
            if (name, side, number) in parts:
                continue
            found = _crowd(cells[name], side, number, engines[side])
            line = {"cell": name, "side": side, "repetition": number, **_readings(found)}
            parts[name, side, number] = line
            _keep(kept, line)


def _crowd(cell: Cell, side: str, repetition: int, engine: RemoteEngine) -> CrowdRecord:
    file = crowd_file(PAUSES[cell.pauses], shared=False, count=cell.agents)
    course = Course(folder=Path(), log=logging.getLogger(__name__), saves=False)
    agents = scripts(file, cell.agents, engine.description.vocab_size, repetition)
    return together(course, engine, WAYS[SIDES[side][0]], agents, file)


def _readings(crowd: CrowdRecord) -> dict[str, Any]:
    return {
        "first_ms": after_pauses(crowd.agents),
        "token_ms": per_token(crowd.agents),
        "refused": sum(not agent.whole for agent in crowd.agents),
        "moves": moves(crowd.swaps),
        "prefetches": crowd.prefetches,
        "seconds": crowd.seconds,
    }


# ----------------------------------------------------------------------------------------------------- figures


def _of(cell: Cell, side: str, group: Group, parts: Parts) -> list[dict[str, Any]]:
    return [parts[str(cell), side, number] for number in range(_repetitions(side, group))]


def _rows(
    cell: Cell, group: Group, parts: Parts, costs: TurnCosts, link: float, checks: Checks
) -> dict[str, dict[str, Any]]:
    """Return, by side, what was measured and what the replay predicts."""
    found = {}
    for side, (_, rule) in SIDES.items():
        crowds = _of(cell, side, group, parts)
        found[side] = {
            "first_token_ms": _percentiles([ms for crowd in crowds for agent in crowd["first_ms"] for ms in agent]),
            "token_ms": _percentiles([ms for crowd in crowds for agent in crowd["token_ms"] for ms in agent]),
            "refused": sum(crowd["refused"] for crowd in crowds),
            "back_when_needed": sum(crowd["moves"]["back_when_needed"] for crowd in crowds),
            "prefetches": {key: sum(crowd["prefetches"][key] for crowd in crowds) for key in crowds[0]["prefetches"]},
        }
        if side != ROOMY:
            scores = [played(cell, RULES[rule], costs, link, number, checks) for number in range(len(crowds))]
            waits = [wait for score in scores for wait in score.returns]
            found[side] |= {
                "predicted_first_token_ms": _percentiles([1000 * (wait + costs.first_token) for wait in waits]),
                "predicted_back_when_needed": sum(wait > 0 for wait in waits),
            }
    return found


def _percentiles(readings: list[float]) -> dict[str, float]:
    return {f"p{percent}": round(percentile(readings, percent), 2) for percent in PERCENTS}


def _figures(cell: Cell, group: Group, parts: Parts, rows: Mapping[str, Mapping[str, Any]]) -> Iterator[Figure]:
    for what, key, shown in (
        ("first token after a pause", "first_ms", ("first_token_ms", "predicted_first_token_ms")),
        ("time per token", "token_ms", ("token_ms",)),
    ):
        sides = {side: [crowd[key] for crowd in _of(cell, side, group, parts)] for side in SIDES}
        for name, found in ratios_of(sides["default"], sides[LRU], RESAMPLES).items():
            yield Figure(
                name=f"{what}, {name}, default of {LRU}: {cell}",
                unit="x",
                value=_spread(found, len(sides[LRU])),
                sides={
                    f"{side}, {field}": Spread.of([row[field][name]])
                    for field in shown
                    for side, row in rows.items()
                    if field in row
                },
                sides_unit="ms",
            )
        count = len(sides[ROOMY])
        for name, found in ratios_of(sides[ROOMY], sides[LRU][:count], RESAMPLES).items():
            yield Figure(name=f"{what} with {ROOMY}, {name}, of {LRU}: {cell}", unit="x", value=_spread(found, count))


def _spread(found: Mapping[str, float], count: int) -> Spread:
    return Spread(median=found["value"], low=found["low"], high=found["high"], count=count)
