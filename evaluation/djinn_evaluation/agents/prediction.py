"""The replay simulator's prediction beside the measurement. The simulator imports the engine: it runs in a process of
its own, with the scripts alone and the times of agents run alone."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from djinn_evaluation.agents.crowd import CrowdRecord
from djinn_evaluation.agents.living import AgentRecord
from djinn_evaluation.agents.rows import moves
from djinn_evaluation.agents.ways import WAYS
from djinn_evaluation.configuration.agents import AgentsFile
from djinn_evaluation.course import Course
from djinn_evaluation.link import Link
from djinn_evaluation.pressure.arithmetic import Arithmetic

MODULE = "djinn_evaluation.agents.replay.predict"
SECONDS = 120


def predicted(
    course: Course,
    file: AgentsFile,
    sums: Arithmetic,
    link: Link,
    alone: Sequence[AgentRecord],
    crowds: Mapping[str, Mapping[int, Sequence[CrowdRecord]]],
) -> dict[str, Any]:
    """Return, for each way that keeps its sessions, the turns that wait for theirs as simulated and as measured."""
    names = [way for way in crowds if not WAYS[way].recomputes]
    asked = {
        "slab": sums.capacity - sums.weights,
        "host": sums.host,
        "link": {way: link.fastest(way) for way in ("in", "out")},
        "ways": {name: _as_asked(name, file) for name in names},
        "parts": {str(count): events(alone[:count], sums.per_session) for count in file.agents.counts},
    }
    course.tell("Asking the replay simulator for its prediction")
    try:
        done = subprocess.run(
            [sys.executable, "-m", MODULE],
            input=json.dumps(asked),
            capture_output=True,
            text=True,
            timeout=SECONDS,
        )
    except subprocess.TimeoutExpired:
        return {"status": "error", "reason": f"the simulator did not answer within {SECONDS} seconds"}
    if done.returncode:
        return {"status": "error", "reason": done.stderr.strip().rpartition("\n")[2]}
    simulated = json.loads(done.stdout)
    rows = [
        beside(name, count, simulated[name][str(count)], crowds[name][count])
        for name in names
        for count in file.agents.counts
    ]
    return {"status": "success", "ways": rows}


def _as_asked(name: str, file: AgentsFile) -> dict[str, Any]:
    way = WAYS[name]
    return {
        "swaps": way.swaps,
        "by_last_use": way.by_last_use,
        "hints": way.hints,
        "prefetches": way.prefetches,
        "idle_seconds": file.idle_seconds if way.idles else None,
    }


def events(alone: Sequence[AgentRecord], per_session: int) -> list[dict[str, Any]]:
    """Return each agent's turns: the time of each request as the script has it, were the agents not in each other's
    way; its seconds as run alone; its session's bytes after it, in proportion to its tokens; the rest it announces."""
    found = []
    for record in alone:
        script, at = record.script, 0.0
        whole = max(len(script.tokens_before(len(script.turns) - 1, [r.tokens for r in record.replies])), 1)
        for number, (turn, reply) in enumerate(zip(script.turns, record.replies, strict=True)):
            at += turn.pause_seconds
            tokens = len(script.tokens_before(number, [r.tokens for r in record.replies]))
            following = script.turns[number + 1] if number + 1 < len(script.turns) else None
            found.append(
                {
                    "session": script.name,
                    "time": at,
                    "seconds": reply.ended - reply.asked,
                    "bytes": round(per_session * tokens / whole),
                    "rest": following.pause_seconds if following is not None and following.known else None,
                    "last": following is None,
                }
            )
            at += reply.ended - reply.asked
    return found


def beside(way: str, count: int, simulated: Mapping[str, float], crowds: Sequence[CrowdRecord]) -> dict[str, Any]:
    """Return simulated and measured figures, a repetition, with the errors of the simulated ones."""
    found = moves([swap for crowd in crowds for swap in crowd.swaps])
    refused = sum(agent.refused is not None for crowd in crowds for agent in crowd.agents)
    measured = {
        "turns_that_waited": found["back_when_needed"] / len(crowds),
        "waited_ms": found["waited_ms"] / len(crowds),
        "bytes_back": found["bytes_back"] / len(crowds),
        "refused": refused / len(crowds),
    }
    error = {key: simulated[key] - value for key, value in measured.items()}
    return {"way": way, "agents": count, "simulated": dict(simulated), "measured": measured, "error": error}
