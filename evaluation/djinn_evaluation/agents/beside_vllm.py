"""vLLM beside the agents: the same scripts, cache and card, without and with its offload to the host."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any, Final

from djinn_evaluation.agents.living import AgentRecord, ReplyRecord
from djinn_evaluation.agents.quantiles import of_agents
from djinn_evaluation.agents.rows import after_pauses, per_token
from djinn_evaluation.baselines.asking import Baseline, BaselineFailed, baseline
from djinn_evaluation.configuration.agents import AgentsFile
from djinn_evaluation.course import Course, Unmeasured
from djinn_evaluation.pressure.arithmetic import Arithmetic
from djinn_jupyter.units import GIB

OFFLOADS: Final = {"prefix_cache": False, "prefix_cache_and_offload": True}
UNCOUNTED: Final = Unmeasured(reason="this vLLM does not count its preemptions")
Asked = Mapping[str, Any]


def vllm_beside(
    course: Course, file: AgentsFile, sums: Arithmetic, alone: Mapping[int, Sequence[AgentRecord]]
) -> dict[str, Any]:
    """Return vLLM's side with a row for each way and number of agents, or the reason why it was not run. `alone` has
    the scripts of each repetition."""
    ways = {way: _measured(course, file, sums, alone, offloads=offloads) for way, offloads in OFFLOADS.items()}
    first = ways["prefix_cache"]
    if isinstance(first, str):
        return {"status": "not_run", "reason": first}
    rows = [
        {"way": way, "status": "not_run", "reason": found} if isinstance(found, str) else {"way": way, **row}
        for way, found in ways.items()
        for row in ([{}] if isinstance(found, str) else found)
    ]
    return {"status": "success", "reason": Unmeasured(reason="vLLM ran"), "ways": rows}


def _measured(
    course: Course, file: AgentsFile, sums: Arithmetic, alone: Mapping[int, Sequence[AgentRecord]], *, offloads: bool
) -> list[dict[str, Any]] | str:
    """Return the rows of one way, or the reason why there is none."""
    course.check_time()
    try:
        with baseline("vllm") as side:
            started = side.ask("start", **_engine(course, file, sums, offloads=offloads))
            if started["status"] == "not_run":
                return str(started["reason"])
            return [_row(course, file, side, count, alone) for count in file.agents.counts]
    except BaselineFailed as error:
        return str(error)


def _engine(course: Course, file: AgentsFile, sums: Arithmetic, *, offloads: bool) -> dict[str, Any]:
    """Return the options of an engine whose cache has what the card has beside the weights."""
    host = sums.per_session * max(file.agents.counts) if sums.host is None else sums.host
    return {
        "model": file.model.name,
        "dtype": file.model.dtype,
        "length": file.agents.positions + 1,
        "cache_bytes": sums.capacity - sums.weights,
        "offload_gb": host / GIB if offloads else 0,
        **course.setup.words(),
    }


def _row(
    course: Course, file: AgentsFile, side: Baseline, count: int, alone: Mapping[int, Sequence[AgentRecord]]
) -> dict[str, Any]:
    """Return the figures of so many agents over all repetitions. Their texts are compared with those that vLLM gives
    the same agents alone."""
    crowds, equal, cached, preempted, seconds = [], 0, 0, [], 0.0
    for records in alone.values():
        course.check_time()
        asked = [asdict(record.script) for record in records[:count]]
        lone, crowd = (
            side.ask("live", agents=asked, reply_tokens=file.agents.reply_tokens, pauses=pauses)
            for pauses in (False, True)
        )
        ours, theirs = _lived(records, crowd), _lived(records, lone)
        equal += sum(agent.same_tokens_as(one) for agent, one in zip(ours, theirs, strict=True))
        cached += sum(reply["cached_tokens"] or 0 for replies in crowd["agents"] for reply in replies)
        preempted.append(crowd["preemptions"])
        seconds += crowd["seconds"]
        crowds.append(ours)
    course.tell(f"vLLM: {count} agents in {seconds:.1f} s")
    return {
        "status": "success",
        "agents": count,
        "repetitions": len(crowds),
        "texts_equal_alone": equal,
        "first_token_ms": of_agents([after_pauses(agents) for agents in crowds], file.resamples),
        "token_ms": of_agents([per_token(agents) for agents in crowds], file.resamples),
        "cached_tokens": cached,
        "preemptions": UNCOUNTED if None in preempted else sum(preempted),
        "seconds": seconds,
    }


def _lived(records: Sequence[AgentRecord], crowd: Asked) -> list[AgentRecord]:
    return [
        AgentRecord(script=record.script, replies=[_reply(reply) for reply in replies])
        for record, replies in zip(records, crowd["agents"], strict=False)
    ]


def _reply(told: Asked) -> ReplyRecord:
    taken = told["first_ms"] + told["token_ms"] * (len(told["tokens"]) - 1)
    return ReplyRecord(
        tokens=tuple(told["tokens"]),
        logits=(),
        first_ms=told["first_ms"],
        token_ms=told["token_ms"],
        asked=told["asked"],
        ended=told["asked"] + taken / 1000,
    )
