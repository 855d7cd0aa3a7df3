"""Crowds of agents that pause, in the replay: every rule over the whole grid of agents, pauses, prompts and memory.

Simulated: the rules are the engine's own code and those it is compared with; the costs of turns and moves are measured
on an engine in the same run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from itertools import product
from statistics import fmean, median
from typing import Final

import djinn_jupyter as dj
from djinn_evaluation.agents.living import Stage as LivingStage
from djinn_evaluation.agents.living import live
from djinn_evaluation.agents.quantiles import PERCENTS, percentile
from djinn_evaluation.agents.replay import bandwidth
from djinn_evaluation.agents.replay.choosing import (
    Belady,
    Djinn,
    Learned,
    LeastRecentlyUsed,
    LeastWaste,
    NeverSwap,
)
from djinn_evaluation.agents.replay.crowds import (
    MEMORY,
    PAUSES,
    Known,
    TurnCosts,
    crowd_file,
    room,
    turns_of,
)
from djinn_evaluation.agents.replay.predict import NO_LIMIT, trace_of
from djinn_evaluation.agents.replay.stage import Costs, Policy, Score, Stage
from djinn_evaluation.agents.replay.trace import Trace
from djinn_evaluation.agents.script import scripts
from djinn_evaluation.agents.ways import WAYS as ENGINE_WAYS
from djinn_evaluation.benchmarks.measuring import Spread
from djinn_evaluation.benchmarks.results import Checks, Figure, Result, at_least, at_most
from djinn_evaluation.benchmarks.setting import Setting
from djinn_evaluation.intervals import MedianInterval
from djinn_jupyter.api.engine import RemoteEngine

REPETITIONS: Final = {8: 10, 24: 10, 80: 3}  # by agents
VOCABULARY: Final = 50257  # of tokens that are only counted
IDLE_SECONDS: Final = 0.5
ALONE: Final = 8  # agents by which the costs are measured
LRU, DEFAULT, ORACLE = "least recently used", "default, ahead", "oracle, ahead"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """`known`: the pauses whose length the rule is told; `idle`: the rest after which sessions leave in any case."""

    policy: Callable[[Trace], Policy]
    known: Known = "nothing"
    ahead: bool = False
    idle: float | None = None


RULES: Final[Mapping[str, Rule]] = {
    "never swap": Rule(policy=lambda trace: NeverSwap()),
    LRU: Rule(policy=lambda trace: LeastRecentlyUsed()),
    f"{LRU}, ahead": Rule(policy=lambda trace: LeastRecentlyUsed(), known="tools", ahead=True),
    "time-out": Rule(policy=lambda trace: LeastRecentlyUsed(), idle=IDLE_SECONDS),
    "learned": Rule(policy=lambda trace: Learned()),
    "learned, hinted": Rule(policy=lambda trace: Learned(), known="tools"),
    "learned, hinted, ahead": Rule(policy=lambda trace: Learned(), known="tools", ahead=True),
    "least waste": Rule(policy=lambda trace: LeastWaste(), known="tools"),
    "least waste, ahead": Rule(policy=lambda trace: LeastWaste(), known="tools", ahead=True),
    "default": Rule(policy=lambda trace: Djinn(), known="tools"),
    DEFAULT: Rule(policy=lambda trace: Djinn(), known="tools", ahead=True),
    "oracle": Rule(policy=Belady, known="all"),
    ORACLE: Rule(policy=Belady, known="all", ahead=True),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    agents: int
    pauses: str
    prompts: str
    memory: str

    def __str__(self) -> str:
        return f"{self.agents} agents, {self.pauses}, {self.prompts} prompts, memory for {self.memory}"


Played = dict[str, list[Score]]  # by rule, one a repetition


def run(setting: Setting) -> Result:
    costs, link = measured(), bandwidth.memory()
    checks, played = Checks(), dict[Cell, Played]()
    cells = [Cell(agents=a, pauses=b, prompts=c, memory=d) for a, b, c, d in _grid(setting)]
    for number, cell in enumerate(cells):
        played[cell] = {name: _plays(cell, rule, costs, link, setting, checks) for name, rule in RULES.items()}
        if number % 9 == 8:
            print(f"  {number + 1} of {len(cells)} cells", flush=True)
    settings = {
        "simulated": True,
        "costs": asdict(costs),
        "bytes_per_second": link,
        "repetitions": REPETITIONS,
        "columns": "rule: ms waited by a turn after a pause, p50, p90, p99, mean; turns that waited; agents refused",
        "cells": {str(cell): {name: _row(scores) for name, scores in rules.items()} for cell, rules in played.items()},
    }
    return Result(benchmark="crowds", settings=settings, figures=tuple(_figures(played)), checks=checks.counts)


def _grid(setting: Setting) -> Iterator[tuple[int, str, str, str]]:
    return product([*REPETITIONS][:1] if setting.quick else REPETITIONS, PAUSES, ("shared", "own"), MEMORY)


def _plays(cell: Cell, rule: Rule, costs: TurnCosts, link: float, setting: Setting, checks: Checks) -> list[Score]:
    return [
        played(cell, rule, costs, link, number, checks) for number in range(setting.rounds(REPETITIONS[cell.agents]))
    ]


def played(cell: Cell, rule: Rule, costs: TurnCosts, link: float, repetition: int, checks: Checks) -> Score:
    file = crowd_file(PAUSES[cell.pauses], shared=cell.prompts == "shared", count=cell.agents)
    crowd = scripts(file, cell.agents, VOCABULARY, repetition)
    trace = trace_of(str(cell), turns_of(crowd, file, costs, rule.known), hints=True)
    slab = room(file, cell.agents, MEMORY[cell.memory], costs)
    rates = dict.fromkeys(("host_in", "host_out", "disk_in", "disk_out"), link)
    device = Costs(slab=slab, host=NO_LIMIT, latency=costs.latency, recompute=costs.recompute, **rates)
    stage = Stage(trace, device, rule.policy(trace), prefetch=rule.ahead, idle_seconds=rule.idle, in_turn=True)
    score = stage.play()
    checks.same("never more on the device than it has", score.most <= slab, True)
    checks.same("all turns of rules that swap were played", score.refused and stage.policy.swaps, 0)
    return score


def measured() -> TurnCosts:
    """Measure the costs on an engine that has room, with agents one after the other."""
    with engine_with("lru", None) as engine:
        return measured_on(engine)


@contextmanager
def engine_with(way: str, limit: int | None, copy: int = 1) -> Iterator[RemoteEngine]:
    """Start an engine that keeps its sessions so, in `limit` bytes for weights and pages; end it with the block.
    Each of several at once has a number of its own, `copy`."""
    options = ENGINE_WAYS[way].options(crowd_file("tool", shared=False, count=ALONE))
    engine = dj.load("demo", **{**options, "device_memory": limit, "copy": copy})
    try:
        yield engine
    finally:
        engine.stop(force=True)


def measured_on(engine: RemoteEngine) -> TurnCosts:
    file, way = crowd_file("tool", shared=False, count=ALONE), ENGINE_WAYS["lru"]
    stage = LivingStage(
        engine=engine, way=way, reply_tokens=file.agents.reply_tokens, patience_seconds=1.0, prefix_reply=(), begun=0.0
    )
    crowd = scripts(file, ALONE, engine.description.vocab_size, 0)
    found = [live(stage, script, pauses=False).replies for script in crowd]
    later = [reply for replies in found for reply in replies[1:]]
    session = engine.session("moved", fresh=True)
    session.run(list(crowd[0].turns[0].tokens), max_new_tokens=1, ignore_eos=True)
    moves = [moved for _ in range(ALONE) if session.swap_out() and (moved := session.swap_in())]
    size = median(moved.bytes_moved for moved in moves)
    prefill = median(replies[0].first_ms for replies in found) / 1000
    return TurnCosts(
        first_turn=median(replies[0].ended - replies[0].asked for replies in found),
        turn=median(reply.ended - reply.asked for reply in later),
        first_token=median(reply.first_ms for reply in later) / 1000,
        token_bytes=size / file.agents.prompt_tokens,
        latency=median(moved.seconds for moved in moves),
        recompute=size / prefill,
    )


# ----------------------------------------------------------------------------------------------------- figures


def _row(scores: list[Score]) -> str:
    waits = [wait for score in scores for wait in score.returns]
    if not waits:
        return f"no turn; {sum(score.refused for score in scores)} refused"
    each = [1000 * percentile(waits, percent) for percent in PERCENTS]
    late = sum(wait > 0 for wait in waits)
    numbers = " ".join(f"{value:.2f}" for value in (*each, 1000 * fmean(waits)))
    return f"{numbers}; {late} of {len(waits)}; {sum(score.refused for score in scores)}"


def p99(score: Score) -> float:
    return percentile(score.returns, 99)


def mean(score: Score) -> float:
    return fmean(score.returns)


def _figures(played: Mapping[Cell, Played]) -> Iterator[Figure]:
    for name, of in (("p99", p99), ("mean", mean)):
        for rule in [rule for rule in RULES if rule not in ("never swap", LRU)]:
            yield Figure(
                name=f"cells in which {rule} waits longer than {LRU} by the interval of the median, {name}",
                unit=f"of {len(played)} cells",
                value=Spread.of([sum(_worse(rules[rule], rules[LRU], of) for rules in played.values())]),
                bar=at_most(0) if rule == DEFAULT else None,
            )
    for pauses in PAUSES:
        some = [rules for cell, rules in played.items() if cell.pauses == pauses]
        for rule in ("learned", "learned, hinted, ahead", "least waste, ahead", "default", DEFAULT, ORACLE):
            yield Figure(
                name=f"p99 of the wait of {rule}, of {LRU}'s, cells with {pauses}",
                unit="x",
                value=Spread.of(_ratios(some, rule)),
                bar=at_most(0.5) if rule == DEFAULT and pauses == "tool calls" else None,
            )
        yield Figure(
            name=f"the way from {LRU} to the oracle that the default goes, mean wait, cells with {pauses}",
            unit="of it",
            value=Spread.of(_way_gone(some)),
            bar=at_least(0.5) if pauses == "tool calls" else None,
        )


def _worse(scores: list[Score], than: list[Score], of: Callable[[Score], float]) -> bool:
    """Return whether the whole interval of the median difference is above 0."""
    return MedianInterval.of([of(one) - of(other) for one, other in zip(scores, than, strict=True)]).low > 0


def _pooled(scores: list[Score]) -> list[float]:
    return [wait for score in scores for wait in score.returns]


def _ratios(cells: list[Played], rule: str) -> list[float]:
    pairs = [(percentile(_pooled(rules[rule]), 99), percentile(_pooled(rules[LRU]), 99)) for rules in cells]
    return [ours / theirs for ours, theirs in pairs if theirs > 0]


def _way_gone(cells: list[Played]) -> list[float]:
    sums = [[sum(_pooled(rules[rule])) for rule in (LRU, DEFAULT, ORACLE)] for rules in cells]
    return [(lru - ours) / (lru - best) for lru, ours, best in sums if lru > best]
