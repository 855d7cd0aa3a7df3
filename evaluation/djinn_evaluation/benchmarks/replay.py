"""Eviction and return of sessions, played over traces of notebook work: Djinn's policy and those it is compared with.

Simulated: no engine runs. The costs are bandwidths measured in the same run, the policy is the engine's own code.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from djinn_evaluation.agents.replay import LATENCY, RECORDED, bandwidth
from djinn_evaluation.agents.replay.choosing import (
    Belady,
    ByClass,
    Djinn,
    LeastRecentlyUsed,
    NeverSwap,
    SwapAtPause,
)
from djinn_evaluation.agents.replay.people import GENERATED, generated
from djinn_evaluation.agents.replay.stage import Costs, Policy, Score, Stage
from djinn_evaluation.agents.replay.trace import Trace
from djinn_evaluation.benchmarks.measuring import Spread
from djinn_evaluation.benchmarks.results import Checks, Figure, Result, at_most
from djinn_evaluation.benchmarks.setting import Setting
from djinn_evaluation.intervals import ratios

SEEDS: Final = 3
TIMES_THE_SLAB: Final = (3, 6)
IDLE_SECONDS: Final = 60.0
LRU, DJINN, BELADY = "least recently used", "djinn", "Belady, who knows the future"

POLICIES: Final[Mapping[str, Callable[[Trace], Policy]]] = {
    DJINN: lambda trace: Djinn(),
    LRU: lambda trace: LeastRecentlyUsed(),
    "by class first": lambda trace: ByClass(),
    "swap at pause": lambda trace: SwapAtPause(),
    "never swap": lambda trace: NeverSwap(),
    BELADY: Belady,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
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


def run(setting: Setting) -> Result:
    rates = _rates(setting.home)
    checks = Checks()
    figures: list[Figure] = []
    traces = {name: _seeds(name, setting) for name in GENERATED} | {"recorded": [Trace.load(RECORDED)]}
    for name, several in traces.items():
        for factor in TIMES_THE_SLAB:
            plays = _Plays(several, factor, rates, checks)
            figures += _figures(f"{name}, demand {factor} x slab", plays)
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
    memory = bandwidth.memory()
    write, read = bandwidth.disk(folder)
    return {"host_in": memory, "host_out": memory, "disk_in": read, "disk_out": write}


class _Plays:
    """Several traces of a kind, played on a slab of their demand divided by `factor`."""

    def __init__(self, traces: list[Trace], factor: int, rates: Mapping[str, float], checks: Checks) -> None:
        self._traces, self._factor, self._rates, self._checks = traces, factor, rates, checks

    def of(self, policy: str, *, prefetch: bool = False, idle_seconds: float | None = None) -> list[Played]:
        return [self._play(trace, policy, prefetch, idle_seconds) for trace in self._traces]

    def _play(self, trace: Trace, policy: str, prefetch: bool, idle_seconds: float | None) -> Played:
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
        return Played(hours=trace.hours, score=score)


def _figures(where: str, plays: _Plays) -> Iterator[Figure]:
    plain = {name: plays.of(name) for name in POLICIES}
    ahead = {name: plays.of(name, prefetch=True) for name in (DJINN, LRU)}
    never = plain.pop("never swap")
    yield _compared(f"waiting on demand, of {LRU}: {where}", plain, "s/h", lambda p: p.stalled)
    yield _compared(f"waiting with prefetch, of {LRU} with prefetch: {where}", ahead, "s/h", lambda p: p.stalled)
    both = {DJINN: ahead[DJINN], LRU: plain[LRU]}
    yield _compared(f"waiting with prefetch, of {LRU} without: {where}", both, "s/h", lambda p: p.stalled)
    yield _compared(f"bytes moved on demand, of {LRU}: {where}", plain, "GB/h", lambda p: p.moved, bar=False)
    yield _prefetches(where, ahead[DJINN])
    yield Figure(
        name=f"runs that never-swap refuses: {where}",
        unit="of all",
        value=Spread.of(p.score.refused / p.score.runs for p in never),
    )


def _compared(
    name: str,
    plays: Mapping[str, list[Played]],
    unit: str,
    reading: Callable[[Played], float],
    *,
    bar: bool = True,
) -> Figure:
    sides = {side: [reading(p) for p in several] for side, several in plays.items()}
    pairs = [(ours, theirs) for ours, theirs in zip(sides[DJINN], sides[LRU], strict=True) if theirs > 0]
    return Figure(
        name=name,
        unit="x",
        value=Spread.of(ratios([a for a, _ in pairs], [b for _, b in pairs])),
        bar=at_most(1.0) if bar else None,
        sides={side: Spread.of(readings) for side, readings in sides.items()},
        sides_unit=unit,
        not_run=None if pairs else f"{LRU} never waited",
    )


def _prefetches(where: str, plays: Iterable[Played]) -> Figure:
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
