"""A way's figures in the result file, and its comparison with the least-recently-used order, agent by agent."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from djinn_evaluation.agents.crowd import CrowdRecord
from djinn_evaluation.agents.living import AgentRecord
from djinn_evaluation.agents.quantiles import of_agents, ratios_of
from djinn_evaluation.course import Unmeasured

AGAINST = "lru"
Crowds = Sequence[tuple[int, CrowdRecord]]
NO_TURN = Unmeasured(reason="no agent went on after a pause")


def row_of(
    way: str, count: int, crowds: Crowds, alone: Mapping[int, Sequence[AgentRecord]], resamples: int
) -> dict[str, Any]:
    """Return the row of one way and number of agents, over all repetitions."""
    agents = [agent for _, crowd in crowds for agent in crowd.agents]
    pairs = [(agent, one) for r, crowd in crowds for agent, one in zip(crowd.agents, alone[r], strict=False)]
    swaps = [swap for _, crowd in crowds for swap in crowd.swaps]
    firsts = [found for _, crowd in crowds if (found := after_pauses(crowd.agents))]
    tokens = [found for _, crowd in crowds if (found := per_token(crowd.agents))]
    return {
        "way": way,
        "agents": count,
        "repetitions": len(crowds),
        "agents_served": sum(agent.whole for agent in agents),
        "turns_asked_again": sum(agent.asked_again for agent in agents),
        "agents_refused": sum(agent.refused is not None for agent in agents),
        "refusal": next((agent.refused for agent in agents if agent.refused is not None), None)
        or Unmeasured(reason="no agent was refused"),
        "turns_after_pauses": sum(len(turns) for crowd in firsts for turns in crowd),
        "texts_equal_alone": sum(agent.same_tokens_as(one) for agent, one in pairs),
        "bits_equal_alone": sum(agent.same_as(one) for agent, one in pairs),
        "first_token_ms": of_agents(firsts, resamples) if firsts else NO_TURN,
        "token_ms": of_agents(tokens, resamples) if tokens else NO_TURN,
        "concurrency": {key: max(crowd.counts.fields()[key] for _, crowd in crowds) for key in _keys(crowds)},
        "moves": moves(swaps),
        "prefetches": {key: sum(crowd.prefetches[key] for _, crowd in crowds) for key in crowds[0][1].prefetches},
        "seconds": sum(crowd.seconds for _, crowd in crowds),
    }


def after_pauses(agents: Sequence[AgentRecord]) -> list[list[float]]:
    """Return each agent's milliseconds to the first token after its pauses; agents without such a turn are left out."""
    return [found for agent in agents if (found := [reply.first_ms for reply in agent.replies[1:]])]


def per_token(agents: Sequence[AgentRecord]) -> list[list[float]]:
    return [found for agent in agents if (found := [reply.token_ms for reply in agent.replies])]


def moves(swaps: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return counts and bytes of the engine's moves by direction, and the waits of turns for their session."""
    out = [swap for swap in swaps if swap["direction"] == "out"]
    back = [swap for swap in swaps if swap["direction"] == "in"]
    needed = [swap for swap in back if swap["cause"] == "needed"]
    return {
        "out": len(out),
        "back": len(back),
        "back_when_needed": len(needed),
        "back_ahead": sum(swap["cause"] == "prefetch" for swap in back),
        "bytes_out": sum(swap["bytes"] for swap in out),
        "bytes_back": sum(swap["bytes"] for swap in back),
        "waited_ms": sum(swap["ms"] for swap in needed),
    }


def comparisons(crowds: Mapping[str, Crowds], count: int, resamples: int) -> list[dict[str, Any]]:
    """Return the ratios of each way's percentiles to those of `AGAINST`; a way that refused agents has none."""
    under = _whole(crowds.get(AGAINST, ()))
    found: list[dict[str, Any]] = []
    for way, several in crowds.items():
        over = _whole(several)
        if way == AGAINST or not over or not under or len(over) != len(under):
            continue
        firsts = [[after_pauses(agents) for agents in side] for side in (over, under)]
        tokens = [[per_token(agents) for agents in side] for side in (over, under)]
        found.append(
            {
                "way": way,
                "against": AGAINST,
                "agents": count,
                "first_token": ratios_of(firsts[0], firsts[1], resamples),
                "token": ratios_of(tokens[0], tokens[1], resamples),
            }
        )
    return found


def _whole(crowds: Crowds) -> list[list[AgentRecord]]:
    """Return the agents of each repetition; none where one of them was not served to its end."""
    whole = all(agent.whole for _, crowd in crowds for agent in crowd.agents)
    return [crowd.agents for _, crowd in crowds] if whole else []


def agents_of(way: str, count: int, crowds: Crowds, alone: Mapping[int, Sequence[AgentRecord]]) -> list[dict[str, Any]]:
    """Return an entry for each agent: whether the turns that it completed are those of the same agent alone."""
    return [
        {
            "way": way,
            "crowd": count,
            "repetition": repetition,
            "agent": agent.script.name,
            "pauses": agent.script.kind,
            "shares_its_prompt": bool(agent.script.prefix),
            "turns": len(agent.replies),
            "text_equal_alone": agent.same_tokens_as(one),
            "bits_equal_alone": agent.same_as(one),
        }
        for repetition, crowd in crowds
        for agent, one in zip(crowd.agents, alone[repetition], strict=False)
    ]


def _keys(crowds: Crowds) -> list[str]:
    return list(crowds[0][1].counts.fields())
