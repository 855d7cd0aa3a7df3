"""All agents of a part on one engine: alone one after the other, and together, each in a thread of its own."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from djinn_evaluation.agents.concurrency import CrowdCounts, counted
from djinn_evaluation.agents.living import AgentRecord, Stage, live, read_shared
from djinn_evaluation.agents.script import SHARED, AgentScript
from djinn_evaluation.agents.ways import Way
from djinn_evaluation.configuration.agents import AgentsFile
from djinn_evaluation.course import Course
from djinn_evaluation.link import TimedCopy
from djinn_evaluation.pressure.swaps import heard
from djinn_jupyter.api.engine import RemoteEngine
from djinn_jupyter.errors import MemoryShortage
from djinn_jupyter.wire.nouns import PrefetchStatistics

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
    """Run each agent by itself, without pauses. MemoryShortage where the device has no room for one alone: then there
    is nothing to hold the crowd's texts against."""
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
