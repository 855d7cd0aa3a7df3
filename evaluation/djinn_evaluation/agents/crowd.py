"""All agents of a part on one engine, alone and together, how many there are at once, and the figures of a way."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from djinn_evaluation.agents.living import SHARED, AgentRecord, AgentScript, Stage, Way, live, read_shared
from djinn_evaluation.configuration.sections import AgentsFile
from djinn_evaluation.course import Course, Unmeasured
from djinn_evaluation.intervals import of_agents, ratios_of
from djinn_evaluation.link import TimedCopy, heard
from djinn_evaluation.memory import on_device
from djinn_evaluation.serving import repeated
from djinn_jupyter.api.engine import RemoteEngine
from djinn_jupyter.errors import MemoryShortage
from djinn_jupyter.units import GIB
from djinn_jupyter.wire.nouns import EngineStatistics, PrefetchStatistics, SessionDescription

PERIOD_SECONDS = 0.05
COUNTED = "samples alive_max on_device_max off_device_max running_max pages_in_use_max device_gb_max".split()


class CrowdCounts:
    """The most of each over all samples: sessions with pages, those of them that are all on the device, and runs."""

    def __init__(self) -> None:
        self.fields: dict[str, float] = dict.fromkeys(COUNTED, 0)

    def add(self, sessions: Sequence[SessionDescription], reading: EngineStatistics) -> None:
        with_pages = [one for one in sessions if one.pages]
        here = sum(one.residency == "resident" for one in with_pages)
        running = sum(one.state == "running" for one in sessions)
        pages = sum(slab.pages - slab.pages_free for slab in reading.slabs)
        memory = on_device(reading) / GIB
        found = (self.fields["samples"] + 1, len(with_pages), here, len(with_pages) - here, running, pages, memory)
        self.fields = {name: max(self.fields[name], value) for name, value in zip(COUNTED, found, strict=True)}


@contextmanager
def counted(engine: RemoteEngine) -> Iterator[CrowdCounts]:
    """Count until the end of the block, twenty times a second."""
    found = CrowdCounts()

    def look() -> None:
        found.add(engine.sessions(), engine.statistics())

    with repeated(look, "djinn-experiment-concurrency", PERIOD_SECONDS, engine.channel):
        yield found


LOOK_SECONDS = 0.1
COUNTS = ("begun", "hits", "late", "wasted")


@dataclass(slots=True, kw_only=True)
class CrowdRecord:
    """One part: its agents in the order of their numbers, the engine's moves, prefetches and counts meanwhile."""

    agents: list[AgentRecord]
    swaps: list[dict[str, Any]]
    copies: list[TimedCopy]
    prefetches: dict[str, int]
    counts: CrowdCounts
    seconds: float


def alone(
    course: Course, engine: RemoteEngine, way: Way, agents: Sequence[AgentScript], file: AgentsFile
) -> list[AgentRecord]:
    """Run each agent by itself, without pauses. MemoryShortage where the device has no room for one alone."""
    stage = _stage(engine, way, agents, file)
    found = []
    for script in agents:
        course.check_time()
        record = live(stage, script, pauses=False)
        if record.refused is not None:
            raise MemoryShortage(f"{script.name} has no room on the device by itself: {record.refused}")
        found.append(record)
    _close_shared(engine, agents)
    return found


def together(
    course: Course, engine: RemoteEngine, way: Way, agents: Sequence[AgentScript], file: AgentsFile
) -> CrowdRecord:
    """Run the agents as they arrive. An error of one ends all, and is raised."""
    before = engine.statistics().prefetches
    stage = _stage(engine, way, agents, file)
    records: list[AgentRecord | None] = [None] * len(agents)
    errors: list[BaseException] = []

    def lives(number: int) -> None:
        try:
            records[number] = live(stage, agents[number])
        except BaseException as error:  # noqa: BLE001  raised again by the thread that waits
            errors.append(error)
            stage.over.set()

    with heard(engine, course, time.monotonic()) as swaps, counted(engine) as counts:
        threads = [threading.Thread(target=lives, args=(number,), daemon=True) for number in range(len(agents))]
        try:
            for thread in threads:
                thread.start()
            for thread in threads:
                while thread.is_alive():
                    thread.join(LOOK_SECONDS)
                    course.check_time()
        finally:
            stage.over.set()
    seconds = time.perf_counter() - stage.begun
    if errors:
        raise errors[0]
    _close_shared(engine, agents)
    return CrowdRecord(
        agents=[record for record in records if record is not None],
        swaps=swaps.events,
        copies=swaps.copies,
        prefetches=_since(before, engine.statistics().prefetches),
        counts=counts,
        seconds=seconds,
    )


def _stage(engine: RemoteEngine, way: Way, agents: Sequence[AgentScript], file: AgentsFile) -> Stage:
    prefix = next((script.prefix for script in agents if script.prefix), ())
    reply = read_shared(engine, prefix) if prefix else ()
    return Stage(
        engine=engine,
        way=way,
        reply_tokens=file.agents.reply_tokens,
        patience_seconds=file.patience_seconds,
        prefix_reply=reply,
        begun=time.perf_counter(),
    )


def _close_shared(engine: RemoteEngine, agents: Sequence[AgentScript]) -> None:
    if any(script.prefix for script in agents):
        engine.session(SHARED).close()


def _since(before: PrefetchStatistics | None, now: PrefetchStatistics | None) -> dict[str, int]:
    return {name: getattr(now, name, 0) - getattr(before, name, 0) for name in COUNTS}


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
        "concurrency": {key: max(crowd.counts.fields[key] for _, crowd in crowds) for key in COUNTED},
        "moves": moves(swaps),
        "prefetches": {key: sum(crowd.prefetches[key] for _, crowd in crowds) for key in crowds[0][1].prefetches},
        "seconds": sum(crowd.seconds for _, crowd in crowds),
    }


def after_pauses(agents: Sequence[AgentRecord]) -> list[list[float]]:
    """Return each agent's milliseconds to the first token after its pauses, where it has such turns."""
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
