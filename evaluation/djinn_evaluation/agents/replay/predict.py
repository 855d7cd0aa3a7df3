"""The simulator's prediction for the agents of `djinn experiment agents`: JSON in, JSON out; and crowds of agents, the
same for the replay and for real engines.

`python -m djinn_evaluation.agents.replay.predict` reads the agents' turns and the ways of keeping them, and writes how
long the simulated device makes them wait. It is told the seconds of each turn alone and the link; of what was measured,
nothing else."""

from __future__ import annotations

import json
import os
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from time import perf_counter
from typing import Any, Final, Literal

import msgspec
import numpy

from djinn_evaluation.agents.living import AgentScript, as_events
from djinn_evaluation.agents.replay import LATENCY
from djinn_evaluation.agents.replay.choosing import Djinn, LeastRecentlyUsed, NeverSwap
from djinn_evaluation.agents.replay.stage import Costs, Event, Policy, Stage, Trace
from djinn_evaluation.configuration.reading import read
from djinn_evaluation.configuration.sections import AgentsFile, PauseKind

BYTES: Final = 256 * 2**20


def memory() -> float:
    """Return bytes/s of a copy from memory to memory: the link between host and device where the device is the CPU."""
    source = numpy.random.default_rng(0).integers(0, 255, BYTES, dtype=numpy.uint8)
    target = numpy.empty_like(source)
    return BYTES / _median(lambda: numpy.copyto(target, source))


def disk(folder: Path) -> tuple[float, float]:
    """Return bytes/s of writing a file (until it is on the disk) and of reading it back, not from the page cache."""
    content = os.urandom(BYTES // 4) * 4
    with tempfile.NamedTemporaryFile(dir=folder) as file:

        def write() -> None:
            os.pwrite(file.fileno(), content, 0)
            os.fsync(file.fileno())

        def read() -> None:
            if hasattr(os, "posix_fadvise"):
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            os.pread(file.fileno(), BYTES, 0)

        return BYTES / _median(write), BYTES / _median(read)


def _median(work: Callable[[], None]) -> float:
    times = []
    for _ in range(4):
        begun = perf_counter()
        work()
        times.append(perf_counter() - begun)
    return statistics.median(times[1:])


Known = Literal["nothing", "tools", "all"]
PAUSES: Final[Mapping[str, PauseKind]] = {"tool calls": "tool", "heavy tails": "heavy_tailed", "bursts": "burst"}
MEMORY: Final[Mapping[str, float]] = {"a tenth": 0.1, "a third": 1 / 3, "two thirds": 2 / 3}
LEAST_SESSIONS: Final = 2  # of which one runs: a card for fewer keeps no agent that pauses


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnCosts:
    """Seconds and bytes of an agent alone; `recompute`: bytes of keys and values that a pass computes in a second."""

    first_turn: float
    turn: float
    first_token: float
    token_bytes: float
    latency: float
    recompute: float


def crowd_file(kind: PauseKind, *, shared: bool, count: int) -> AgentsFile:
    """Return the shipped small file with `count` agents that all pause in one way, and share their prompt or not."""
    small = read("agents_small.yaml", AgentsFile)
    agents = msgspec.structs.replace(
        small.agents, counts=(count,), turns=4, reply_tokens=4, shared=float(shared), arrival_seconds=0.05
    )
    pauses = msgspec.structs.replace(
        small.pauses,
        kinds=(kind,),
        tool_seconds=(0.5, 1.0, 2.0),
        median_seconds=0.8,
        burst_seconds=0.1,
        longest_seconds=3.0,
    )
    return msgspec.structs.replace(small, agents=agents, pauses=pauses, idle_seconds=60.0, patience_seconds=60.0)


def turns_of(crowd: Sequence[AgentScript], file: AgentsFile, costs: TurnCosts, known: Known) -> list[dict[str, Any]]:
    """Return the agents' turns for `trace_of`, were none in another's way; bytes without a shared prompt's."""
    tells = {"nothing": lambda turn: False, "tools": lambda turn: turn.known, "all": lambda turn: True}[known]
    found = []
    for script in crowd:
        tokens = accumulate(len(turn.tokens) + file.agents.reply_tokens for turn in script.turns)
        seconds = [costs.first_turn, *[costs.turn] * (len(script.turns) - 1)]
        found += as_events(script, seconds, (round(costs.token_bytes * count) for count in tokens), tells)
    return found


def room(file: AgentsFile, count: int, share: float, costs: TurnCosts) -> int:
    """Return the bytes of a device that holds this share of all agents' own keys and values at their ends."""
    own = file.agents.positions - file.agents.shared_tokens
    return round(max(share * count, LEAST_SESSIONS) * own * costs.token_bytes)


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
