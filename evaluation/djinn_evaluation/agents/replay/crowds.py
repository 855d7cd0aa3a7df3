"""Crowds of agents, the same for the replay and for real engines: scripts, and turns with measured costs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

import msgspec

from djinn_evaluation.agents.script import AgentScript
from djinn_evaluation.configuration.agents import AgentsFile, PauseKind
from djinn_evaluation.configuration.reading import read

Known = Literal["nothing", "tools", "all"]
PAUSES: Final[Mapping[str, PauseKind]] = {"tool calls": "tool", "heavy tails": "heavy_tailed", "bursts": "burst"}
MEMORY: Final[Mapping[str, float]] = {"a tenth": 0.1, "a third": 1 / 3, "two thirds": 2 / 3}
LEAST_SESSIONS: Final = 2  # of which one runs: a card for fewer keeps no agent that pauses


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnCosts:
    """Of an agent alone: seconds of its first and of a later turn, and to the first token of a later one; bytes of a
    token's keys and values; seconds of a move besides its bytes; bytes of keys and values that a pass computes in a
    second."""

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
    """Return the agents' turns as `predict.trace_of` reads them, were none in another's way. The bytes are an agent's
    own: those of a shared prompt stay."""
    found = []
    for script in crowd:
        at, tokens = 0.0, 0
        for number, turn in enumerate(script.turns):
            at += turn.pause_seconds
            tokens += len(turn.tokens) + file.agents.reply_tokens
            following = script.turns[number + 1] if number + 1 < len(script.turns) else None
            told = following is not None and (known == "all" or (known == "tools" and following.known))
            seconds = costs.turn if number else costs.first_turn
            found.append(
                {
                    "session": script.name,
                    "time": at,
                    "seconds": seconds,
                    "bytes": round(costs.token_bytes * tokens),
                    "rest": following.pause_seconds if told and following is not None else None,
                    "last": following is None,
                }
            )
            at += seconds
    return found


def room(file: AgentsFile, count: int, share: float, costs: TurnCosts) -> int:
    """Return the bytes of a device that holds this share of all agents' own keys and values at their ends."""
    own = file.agents.positions - file.agents.shared_tokens
    return round(max(share * count, LEAST_SESSIONS) * own * costs.token_bytes)
