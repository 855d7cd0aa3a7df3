"""The simulator's prediction for the agents of `djinn experiment agents`: JSON in, JSON out.

`python -m djinn_evaluation.agents.replay.predict` reads the agents' turns and the ways of keeping them, and writes how
long the simulated device makes them wait. It is told the seconds of each turn alone and the link; of what was measured,
nothing else.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping
from typing import Any

from djinn_evaluation.agents.replay import LATENCY
from djinn_evaluation.agents.replay.choosing import Djinn, LeastRecentlyUsed, NeverSwap
from djinn_evaluation.agents.replay.stage import Costs, Policy, Stage
from djinn_evaluation.agents.replay.trace import Event, Trace

NO_LIMIT = 1 << 50  # bytes


def trace_of(name: str, turns: Iterable[Mapping[str, Any]], *, hints: bool) -> Trace:
    """Return the turns as a trace; with `hints` the rests that agents announce are in it."""
    events = []
    for turn in turns:
        at, session, ended = turn["time"], turn["session"], turn["time"] + turn["seconds"]
        events.append(Event(time=at, session=session, kind="run", bytes=turn["bytes"]))
        events.append(Event(time=ended, session=session, kind="stop", bytes=turn["bytes"]))
        if hints and turn["rest"] is not None:
            events.append(Event(time=ended + 1e-6, session=session, kind="rest", seconds=turn["rest"]))
        if turn["last"]:
            events.append(Event(time=ended + 2e-6, session=session, kind="close"))
    return Trace.of(name, events, "scripts of agents")


def policy_of(way: Mapping[str, Any]) -> Policy:
    if not way["swaps"]:
        return NeverSwap()
    return LeastRecentlyUsed() if way["by_last_use"] else Djinn()


def predict(asked: Mapping[str, Any]) -> dict[str, Any]:
    """Return the simulated figures of each way and part."""
    link = asked["link"]  # bytes/s of plain copies in the same run; the agents' host has room for all of them
    costs = Costs(
        slab=asked["slab"],
        host=asked["host"] or NO_LIMIT,
        host_in=link["in"],
        host_out=link["out"],
        disk_in=link["in"],
        disk_out=link["out"],
        latency=LATENCY,
    )
    found: dict[str, Any] = {}
    for name, way in asked["ways"].items():
        for count, turns in asked["parts"].items():
            trace = trace_of(name, turns, hints=way["hints"])
            stage = Stage(trace, costs, policy_of(way), prefetch=way["prefetches"], idle_seconds=way["idle_seconds"])
            score = stage.play()
            found.setdefault(name, {})[count] = {
                "turns_that_waited": len(score.stalls),
                "waited_ms": 1000 * sum(score.stalls),
                "bytes_back": score.bytes_in,
                "refused": score.refused,
            }
    return found


def main() -> None:
    json.dump(predict(json.load(sys.stdin)), sys.stdout)


if __name__ == "__main__":
    main()
