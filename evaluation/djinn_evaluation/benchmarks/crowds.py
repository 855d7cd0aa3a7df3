"""Eviction and return: traces of notebook work and crowds of agents in the replay, and the same agents on engines."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from statistics import fmean, median
from time import monotonic
from typing import Any, Final

import msgspec

import djinn_jupyter as dj
from djinn_evaluation.agents.crowd import CrowdRecord, after_pauses, moves, per_token, together
from djinn_evaluation.agents.living import WAYS, live, scripts
from djinn_evaluation.agents.living import Stage as LivingStage
from djinn_evaluation.agents.replay import LATENCY, RECORDED, choosing, predict
from djinn_evaluation.agents.replay.people import GENERATED, generated
from djinn_evaluation.agents.replay.stage import Costs, Policy, Score, Stage, Trace
from djinn_evaluation.benchmarks import harness
from djinn_evaluation.benchmarks.harness import Checks, Figure, Result, Setting, Spread, at_least, at_most
from djinn_evaluation.course import Course
from djinn_evaluation.intervals import PERCENTS, MedianInterval, percentile, ratios, ratios_of
from djinn_jupyter.api.engine import RemoteEngine

SEEDS: Final = 3
TIMES_THE_SLAB: Final = (3, 6)
IDLE_SECONDS: Final = 60.0
LRU_OF_REPLAY, DJINN, BELADY = "least recently used", "djinn", "Belady, who knows the future"

POLICIES: Final[Mapping[str, Callable[[Trace], Policy]]] = {
    DJINN: lambda trace: choosing.Djinn(),
    LRU_OF_REPLAY: lambda trace: choosing.LeastRecentlyUsed(),
    "by class first": lambda trace: choosing.ByClass(),
    "swap at pause": lambda trace: choosing.SwapAtPause(),
    "never swap": lambda trace: choosing.NeverSwap(),
    BELADY: choosing.Belady,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class PlayedTrace:
    """One trace under one policy."""

    hours: float
    score: Score

    @property
    def stalled(self) -> float:
        """Seconds waited, an hour."""
        return sum(self.score.stalls) / self.hours

    @property
    def moved(self) -> float:
        """GB across the link, an hour."""
        return (self.score.bytes_in + self.score.bytes_out) / 1e9 / self.hours

    @property
    def held(self) -> float:
        """Mean GB on the device."""
        return self.score.byte_seconds / 3600e9 / self.hours


def run_replay(setting: Setting) -> Result:
    """Eviction and return of sessions, played over traces of notebook work: Djinn's policy and those it is compared
    with.

    Simulated: no engine runs. The costs are bandwidths measured in the same run, the policy is the engine's own
    code."""
    rates = _rates(setting.home)
    checks = Checks()
    figures: list[Figure] = []
    traces = {name: _seeds(name, setting) for name in GENERATED} | {"recorded": [Trace.load(RECORDED)]}
    for name, several in traces.items():
        for factor in TIMES_THE_SLAB:
            plays = _Plays(several, factor, rates, checks)
            figures += _figures_of_replay(f"{name}, demand {factor} x slab", plays)
        if name in ("office", "readers"):
            figures += _idle(f"{name}, demand 3 x slab", _Plays(several, 3, rates, checks))
    settings = {
        "bytes_per_second": rates,
        "latency_seconds": LATENCY,
        "seeds": {name: len(several) for name, several in traces.items()},
        "hours": {name: round(several[0].hours, 2) for name, several in traces.items()},
        "runs": {name: sum(e.kind == "run" for e in several[0].events) for name, several in traces.items()},
        "sessions": {name: len(several[0].sessions) for name, several in traces.items()},
        "demand_gigabytes": {name: round(several[0].demand / 1e9, 3) for name, several in traces.items()},
        "simulated": True,
    }
    return Result(benchmark="replay", settings=settings, figures=tuple(figures), checks=checks.counts)


def _seeds(name: str, setting: Setting) -> list[Trace]:
    share = 0.1 if setting.quick else 1.0
    return [generated(name, seed=seed, share=share) for seed in range(setting.rounds(SEEDS))]


def _rates(folder: Path) -> dict[str, float]:
    memory = predict.memory()
    write, read = predict.disk(folder)
    return {"host_in": memory, "host_out": memory, "disk_in": read, "disk_out": write}


class _Plays:
    """Several traces of a kind, played on a slab of their demand divided by `factor`."""

    def __init__(self, traces: list[Trace], factor: int, rates: Mapping[str, float], checks: Checks) -> None:
        self._traces, self._factor, self._rates, self._checks = traces, factor, rates, checks

    def of(self, policy: str, *, prefetch: bool = False, idle_seconds: float | None = None) -> list[PlayedTrace]:
        return [self._play(trace, policy, prefetch, idle_seconds) for trace in self._traces]

    def _play(self, trace: Trace, policy: str, prefetch: bool, idle_seconds: float | None) -> PlayedTrace:
        slab = trace.demand // self._factor
        costs = Costs(slab=slab, host=trace.demand, latency=LATENCY, **self._rates)
        stage = Stage(trace, costs, POLICIES[policy](trace), prefetch=prefetch, idle_seconds=idle_seconds)
        score = stage.play()
        self._checks.same("never more on the device than the slab has", score.most <= slab, True)
        if policy != "never swap":
            too_large = sum(event.kind == "stop" and event.bytes > slab for event in trace.events)
            self._checks.same(
                "runs refused only where the session alone is larger than the slab", score.refused, too_large
            )
        return PlayedTrace(hours=trace.hours, score=score)


def _figures_of_replay(where: str, plays: _Plays) -> Iterator[Figure]:
    plain = {name: plays.of(name) for name in POLICIES}
    ahead = {name: plays.of(name, prefetch=True) for name in (DJINN, LRU_OF_REPLAY)}
    never = plain.pop("never swap")
    yield _compared(f"waiting on demand, of {LRU_OF_REPLAY}: {where}", plain, "s/h", lambda p: p.stalled)
    yield _compared(
        f"waiting with prefetch, of {LRU_OF_REPLAY} with prefetch: {where}", ahead, "s/h", lambda p: p.stalled
    )
    both = {DJINN: ahead[DJINN], LRU_OF_REPLAY: plain[LRU_OF_REPLAY]}
    yield _compared(f"waiting with prefetch, of {LRU_OF_REPLAY} without: {where}", both, "s/h", lambda p: p.stalled)
    yield _compared(f"bytes moved on demand, of {LRU_OF_REPLAY}: {where}", plain, "GB/h", lambda p: p.moved, bar=False)
    yield _prefetches(where, ahead[DJINN])
    yield Figure(
        name=f"runs that never-swap refuses: {where}",
        unit="of all",
        value=Spread.of(p.score.refused / p.score.runs for p in never),
    )


def _compared(
    name: str,
    plays: Mapping[str, list[PlayedTrace]],
    unit: str,
    reading: Callable[[PlayedTrace], float],
    *,
    bar: bool = True,
) -> Figure:
    sides = {side: [reading(p) for p in several] for side, several in plays.items()}
    pairs = [(ours, theirs) for ours, theirs in zip(sides[DJINN], sides[LRU_OF_REPLAY], strict=True) if theirs > 0]
    return Figure(
        name=name,
        unit="x",
        value=Spread.of(ratios([a for a, _ in pairs], [b for _, b in pairs])),
        bar=at_most(1.0) if bar else None,
        sides={side: Spread.of(readings) for side, readings in sides.items()},
        sides_unit=unit,
        not_run=None if pairs else f"{LRU_OF_REPLAY} never waited",
    )


def _prefetches(where: str, plays: Iterable[PlayedTrace]) -> Figure:
    counts = [p.score.prefetches for p in plays]
    return Figure(
        name=f"prefetches that were there in time: {where}",
        unit="of all",
        value=Spread.of(b.hits / b.begun for b in counts if b.begun),
        sides={kind: Spread.of(getattr(b, kind) for b in counts) for kind in ("begun", "hits", "late", "wasted")},
        sides_unit="prefetches",
        not_run=None if any(b.begun for b in counts) else "nothing was prefetched",
    )


def _idle(where: str, plays: _Plays) -> Iterator[Figure]:
    """Yield the cost and the gain of evicting rested sessions although no session needs their place."""
    stay, leave = plays.of(DJINN, prefetch=True), plays.of(DJINN, prefetch=True, idle_seconds=IDLE_SECONDS)
    demand = plays.of(DJINN, idle_seconds=IDLE_SECONDS)
    yield Figure(
        name=f"mean bytes on the device when the idle leave after {IDLE_SECONDS:.0f} s: {where}",
        unit="of those when they stay",
        value=Spread.of(ratios([p.held for p in leave], [p.held for p in stay])),
        sides={"leave": Spread.of(p.held for p in leave), "stay": Spread.of(p.held for p in stay)},
        sides_unit="GB",
    )
    sides: dict[str, Any] = {"leave, prefetch": leave, "leave, on demand": demand, "stay, prefetch": stay}
    yield Figure(
        name=f"waiting when the idle leave, with prefetch, of the same on demand: {where}",
        unit="x",
        value=Spread.of(ratios([p.stalled for p in leave], [p.stalled for p in demand])),
        sides={name: Spread.of(p.stalled for p in several) for name, several in sides.items()},
        sides_unit="s/h",
    )


REPETITIONS_OF_CROWDS: Final = {8: 10, 24: 10, 80: 3}  # by agents
VOCABULARY: Final = 50257  # of tokens that are only counted
LEAVES_AFTER: Final = 0.5
ALONE: Final = 8  # agents by which the costs are measured
LRU, DEFAULT, ORACLE = "least recently used", "default, ahead", "oracle, ahead"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """`known`: the pauses whose length the rule knows; `idle`: the rest after which sessions leave in any case."""

    policy: Callable[[Trace], Policy]
    known: predict.Known = "nothing"
    ahead: bool = False
    idle: float | None = None


RULES: Final[Mapping[str, Rule]] = {
    "never swap": Rule(policy=lambda trace: choosing.NeverSwap()),
    LRU: Rule(policy=lambda trace: choosing.LeastRecentlyUsed()),
    f"{LRU}, ahead": Rule(policy=lambda trace: choosing.LeastRecentlyUsed(), known="tools", ahead=True),
    "time-out": Rule(policy=lambda trace: choosing.LeastRecentlyUsed(), idle=LEAVES_AFTER),
    "learned": Rule(policy=lambda trace: choosing.Learned()),
    "learned, hinted": Rule(policy=lambda trace: choosing.Learned(), known="tools"),
    "learned, hinted, ahead": Rule(policy=lambda trace: choosing.Learned(), known="tools", ahead=True),
    "least waste": Rule(policy=lambda trace: choosing.LeastWaste(), known="tools"),
    "least waste, ahead": Rule(policy=lambda trace: choosing.LeastWaste(), known="tools", ahead=True),
    "default": Rule(policy=lambda trace: choosing.Djinn(), known="tools"),
    DEFAULT: Rule(policy=lambda trace: choosing.Djinn(), known="tools", ahead=True),
    "oracle": Rule(policy=choosing.Belady, known="all"),
    ORACLE: Rule(policy=choosing.Belady, known="all", ahead=True),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    agents: int
    pauses: str
    prompts: str
    memory: str

    def __str__(self) -> str:
        return f"{self.agents} agents, {self.pauses}, {self.prompts} prompts, memory for {self.memory}"


PlayedByRule = dict[str, list[Score]]  # by rule, one a repetition


def run_crowds(setting: Setting) -> Result:
    """Crowds of agents that pause, in the replay: every rule over the whole grid of agents, pauses, prompts and
    memory.

    Simulated: the rules are the engine's own code and those it is compared with; the costs of turns and moves are
    measured on an engine in the same run."""
    with engine_with("lru", None) as engine:
        costs, link = measured_on(engine), predict.memory()
    checks, played = Checks(), dict[Cell, PlayedByRule]()
    agents = [*REPETITIONS_OF_CROWDS][:1] if setting.quick else REPETITIONS_OF_CROWDS
    grid = product(agents, predict.PAUSES, ("shared", "own"), predict.MEMORY)
    cells = [Cell(agents=a, pauses=b, prompts=c, memory=d) for a, b, c, d in grid]
    for number, cell in enumerate(cells):
        played[cell] = {name: _plays(cell, rule, costs, link, setting, checks) for name, rule in RULES.items()}
        if number % 9 == 8:
            print(f"  {number + 1} of {len(cells)} cells", flush=True)
    settings = {
        "simulated": True,
        "costs": asdict(costs),
        "bytes_per_second": link,
        "repetitions": REPETITIONS_OF_CROWDS,
        "columns": "rule: ms waited by a turn after a pause, p50, p90, p99, mean; turns that waited; agents refused",
        "cells": {str(cell): {name: _row(scores) for name, scores in rules.items()} for cell, rules in played.items()},
    }
    return Result(
        benchmark="crowds", settings=settings, figures=tuple(_figures_of_crowds(played)), checks=checks.counts
    )


def _plays(
    cell: Cell, rule: Rule, costs: predict.TurnCosts, link: float, setting: Setting, checks: Checks
) -> list[Score]:
    return [
        played(cell, rule, costs, link, number, checks)
        for number in range(setting.rounds(REPETITIONS_OF_CROWDS[cell.agents]))
    ]


def played(cell: Cell, rule: Rule, costs: predict.TurnCosts, link: float, repetition: int, checks: Checks) -> Score:
    file = predict.crowd_file(predict.PAUSES[cell.pauses], shared=cell.prompts == "shared", count=cell.agents)
    crowd = scripts(file, cell.agents, VOCABULARY, repetition)
    trace = predict.trace_of(str(cell), predict.turns_of(crowd, file, costs, rule.known), hints=True)
    slab = predict.room(file, cell.agents, predict.MEMORY[cell.memory], costs)
    rates = dict.fromkeys(("host_in", "host_out", "disk_in", "disk_out"), link)
    device = Costs(slab=slab, host=predict.NO_LIMIT, latency=costs.latency, recompute=costs.recompute, **rates)
    stage = Stage(trace, device, rule.policy(trace), prefetch=rule.ahead, idle_seconds=rule.idle, in_turn=True)
    score = stage.play()
    checks.same("never more on the device than it has", score.most <= slab, True)
    checks.same("all turns of rules that swap were played", score.refused and stage.policy.swaps, 0)
    return score


@contextmanager
def engine_with(way: str, limit: int | None, copy: int = 1) -> Iterator[RemoteEngine]:
    """Start an engine that keeps its sessions so, in `limit` bytes; `copy` numbers several at once."""
    options = WAYS[way].options(predict.crowd_file("tool", shared=False, count=ALONE))
    engine = dj.load("demo", **{**options, "device_memory": limit, "copy": copy})
    try:
        yield engine
    finally:
        engine.stop(force=True)


def measured_on(engine: RemoteEngine) -> predict.TurnCosts:
    """Measure the costs on an engine that has room, with agents one after the other."""
    file, way = predict.crowd_file("tool", shared=False, count=ALONE), WAYS["lru"]
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
    return predict.TurnCosts(
        first_turn=median(replies[0].ended - replies[0].asked for replies in found),
        turn=median(reply.ended - reply.asked for reply in later),
        first_token=median(reply.first_ms for reply in later) / 1000,
        token_bytes=size / file.agents.prompt_tokens,
        latency=median(moved.seconds for moved in moves),
        recompute=size / prefill,
    )


def _row(scores: list[Score]) -> str:
    waits = _pooled(scores)
    if not waits:
        return f"no turn; {sum(score.refused for score in scores)} refused"
    each = [1000 * percentile(waits, percent) for percent in PERCENTS]
    late = sum(wait > 0 for wait in waits)
    numbers = " ".join(f"{value:.2f}" for value in (*each, 1000 * fmean(waits)))
    return f"{numbers}; {late} of {len(waits)}; {sum(score.refused for score in scores)}"


MEASURES: Final[Mapping[str, Callable[[Score], float]]] = {
    "p99": lambda score: percentile(score.returns, 99),
    "mean": lambda score: fmean(score.returns),
}


def _figures_of_crowds(played: Mapping[Cell, PlayedByRule]) -> Iterator[Figure]:
    for name, of in MEASURES.items():
        for rule in [rule for rule in RULES if rule not in ("never swap", LRU)]:
            yield Figure(
                name=f"cells in which {rule} waits longer than {LRU} by the interval of the median, {name}",
                unit=f"of {len(played)} cells",
                value=Spread.of([sum(_worse(rules[rule], rules[LRU], of) for rules in played.values())]),
                bar=at_most(0) if rule == DEFAULT else None,
            )
    for pauses in predict.PAUSES:
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


def _ratios(cells: list[PlayedByRule], rule: str) -> list[float]:
    pairs = [(percentile(_pooled(rules[rule]), 99), percentile(_pooled(rules[LRU]), 99)) for rules in cells]
    return [ours / theirs for ours, theirs in pairs if theirs > 0]


def _way_gone(cells: list[PlayedByRule]) -> list[float]:
    sums = [[sum(_pooled(rules[rule])) for rule in (LRU, DEFAULT, ORACLE)] for rules in cells]
    return [(lru - ours) / (lru - best) for lru, ours, best in sums if lru > best]


REPETITIONS_OF_CORNERS: Final = 6
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
    four = [
        Group(agents=count, memory=memory, pauses=both, repetitions=REPETITIONS_OF_CORNERS) for count, memory in corners
    ]
    return [*four, Group(agents=80, memory="a third", pauses=both[:1], repetitions=1)]


def run_corners(setting: Setting) -> Result:
    """Agents on real engines at the corners of the grid of `crowds`: the least recently used order against the
    default, and an engine with room for all of them, whose turns wait for the processor alone: no order waits less.

    Each crowd is written as it ends, and a run that was cut goes on behind the last one. The replay's prediction,
    with the costs measured at the beginning, stands beside."""
    kept = harness.HERE / ("quick" if setting.quick else "") / "corners.parts"
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
    link, checks = predict.memory(), Checks()
    rows = {str(cell): _rows(cell, group, parts, costs, link, checks) for group in asked for cell in group.cells()}
    figures = [
        figure
        for group in asked
        for cell in group.cells()
        for figure in _figures_of_corners(cell, group, parts, rows[str(cell)])
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


def _begun(kept: Path) -> tuple[Parts, predict.TurnCosts]:
    """Return the crowds of a run that was cut, and its costs; or measure these."""
    lines = [json.loads(line) for line in kept.read_text().splitlines()] if kept.exists() else []
    if not lines:
        with engine_with("lru", None) as engine:
            lines = [{"costs": asdict(measured_on(engine)), "weights": engine.statistics().weight_bytes}]
        _keep(kept, lines[0])
    parts: Parts = {(line["cell"], line["side"], line["repetition"]): line for line in lines[1:]}
    parts["", "", 0] = lines[0]
    return parts, msgspec.convert(lines[0]["costs"], predict.TurnCosts)


def _weights(parts: Parts) -> int:
    return int(parts["", "", 0]["weights"])


def _keep(kept: Path, line: Mapping[str, Any]) -> None:
    with kept.open("a") as file:
        file.write(json.dumps(line) + "\n")


def _measure(group: Group, costs: predict.TurnCosts, parts: Parts, kept: Path) -> None:
    file = predict.crowd_file("tool", shared=False, count=group.agents)
    limit = _weights(parts) + predict.room(file, group.agents, predict.MEMORY[group.memory], costs)
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
    file = predict.crowd_file(predict.PAUSES[cell.pauses], shared=False, count=cell.agents)
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


def _of(cell: Cell, side: str, group: Group, parts: Parts) -> list[dict[str, Any]]:
    return [parts[str(cell), side, number] for number in range(_repetitions(side, group))]


def _rows(
    cell: Cell, group: Group, parts: Parts, costs: predict.TurnCosts, link: float, checks: Checks
) -> dict[str, dict[str, Any]]:
    """Return the measured and the predicted values by side."""
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
            waits = _pooled(scores)
            found[side] |= {
                "predicted_first_token_ms": _percentiles([1000 * (wait + costs.first_token) for wait in waits]),
                "predicted_back_when_needed": sum(wait > 0 for wait in waits),
            }
    return found


def _percentiles(readings: list[float]) -> dict[str, float]:
    return {f"p{percent}": round(percentile(readings, percent), 2) for percent in PERCENTS}


def _figures_of_corners(
    cell: Cell, group: Group, parts: Parts, rows: Mapping[str, Mapping[str, Any]]
) -> Iterator[Figure]:
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
