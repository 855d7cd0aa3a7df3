"""The run of `agents`: each agent alone, the crowd kept in each way, vLLM beside it, and the replay's prediction."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from djinn_evaluation.agents.crowd import (
    CrowdRecord,
    after_pauses,
    agents_of,
    alone,
    comparisons,
    moves,
    per_token,
    row_of,
    together,
)
from djinn_evaluation.agents.living import (
    WAYS,
    AgentRecord,
    AgentScript,
    ReplyRecord,
    Way,
    as_events,
    by_engine,
    recorded_pauses,
    scripts,
)
from djinn_evaluation.baselines.asking import Baseline, BaselineFailed, baseline
from djinn_evaluation.configuration.sections import AgentsFile
from djinn_evaluation.course import NOT_YET, Course, Unmeasured, now
from djinn_evaluation.intervals import of_agents
from djinn_evaluation.link import Link, TimedCopy, measured_link
from djinn_evaluation.memory import bytes_of
from djinn_evaluation.pressure import Arithmetic, arithmetic
from djinn_evaluation.serving import Shape, engine_for, foretold, shape_of
from djinn_jupyter.api.engine import RemoteEngine
from djinn_jupyter.errors import UsageError
from djinn_jupyter.units import GIB

OFFLOADS: Final = {"prefix_cache": False, "prefix_cache_and_offload": True}
UNCOUNTED: Final = Unmeasured(reason="this vLLM does not count its preemptions")
Asked = Mapping[str, Any]


def vllm_beside(
    course: Course, file: AgentsFile, sums: Arithmetic, alone: Mapping[int, Sequence[AgentRecord]]
) -> dict[str, Any]:
    """Return vLLM's side, a row for each way and number, or the reason why it was not run."""
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
    """Return the figures of so many agents over all repetitions, held against the same agents alone in vLLM."""
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
    """Return each agent's turns as if alone: times, seconds, bytes in proportion to tokens, and announced rests."""
    found = []
    for record in alone:
        script, replies = record.script, [reply.tokens for reply in record.replies]
        tokens = [len(script.tokens_before(number, replies)) for number in range(len(script.turns))]
        sizes = [round(per_session * count / max(tokens[-1], 1)) for count in tokens]
        seconds = [reply.ended - reply.asked for reply in record.replies]
        found += as_events(script, seconds, sizes, lambda turn: turn.known)
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


LOG, FILE = "agents.log", "agents_results.json"
FILES = (FILE,)
FIELDS = "timestamp demand_gb capacity_gb ways agents comparisons link vllm prediction".split()
Part = tuple[int, int]  # repetition, number of agents


@dataclass(slots=True)
class CrowdsMeasured:
    """The readings: each agent alone by repetition, and the crowd of each part by way. The rows of a way have all its
    crowds, and the comparisons those of whole repetitions: intervals of many agents take too long for every partial
    file."""

    alone: dict[int, list[AgentRecord]] = field(default_factory=dict)
    crowds: dict[str, dict[Part, CrowdRecord]] = field(default_factory=dict)
    rows: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    compared: list[dict[str, Any]] = field(default_factory=list)
    sums: Arithmetic | None = None
    device: str = ""

    @property
    def copies(self) -> list[TimedCopy]:
        return [copy for parts in self.crowds.values() for crowd in parts.values() for copy in crowd.copies]

    def of(self, way: str, count: int) -> list[tuple[int, CrowdRecord]]:
        """Return the crowds of so many agents, by repetition."""
        return [(part[0], crowd) for part, crowd in self.crowds.get(way, {}).items() if part[1] == count]


def run(course: Course, file: AgentsFile) -> list[str]:
    """Write the result file; return the reasons why the run fails, none when it passes."""
    if course.setup.server is not None:
        raise UsageError("agents starts engines with options of its own, one after the other; leave --server out.")
    recorded_pauses(file.pauses)
    _require(foretold(file.model.name), file)
    course.write_partial(FILE, FIELDS, {"model": course.setup.named(file.model.name)})
    found = CrowdsMeasured()
    for repetition in range(file.repetitions):  # each has all ways, so that what else the machine does meets them all
        for options, ways in by_engine(file):
            with engine_for(course, file.model.name, **options) as engine:
                _require(shape_of(engine), file)
                found.sums, found.device = found.sums or _arithmetic(course, engine, file), engine.description.device
                if not found.sums.exceeds:
                    return _proves_nothing(course, file, found.sums)
                if repetition not in found.alone:
                    _alone(course, engine, file, repetition, found)
                for way in ways:
                    _measure(course, engine, file, way, repetition, found)
                    course.write_partial(FILE, FIELDS, _fields(course, file, found))
        _compare(file, found)
        course.write_partial(FILE, FIELDS, _fields(course, file, found))
    assert found.sums is not None
    link = measured_link(course, found.device)
    failures = judge(file, found) + link.failures(found.copies)
    counts = file.agents.counts
    crowds = {way: {count: [crowd for _, crowd in found.of(way, count)] for count in counts} for way in found.crowds}
    beside = {
        "link": link.fields(found.copies),
        "vllm": vllm_beside(course, file, found.sums, found.alone),
        "prediction": predicted(course, file, found.sums, link, found.alone[0], crowds),
    }
    fields = {**_fields(course, file, found), **beside}
    course.write(FILE, {"status": course.concluded(failures), **fields, "failures": failures})
    return failures


def _require(shape: Shape, file: AgentsFile) -> None:
    shape.require_room(file.agents.positions - file.agents.reply_tokens, file.agents.reply_tokens)


def _arithmetic(course: Course, engine: RemoteEngine, file: AgentsFile) -> Arithmetic:
    """Compute the demand of the smallest crowd, as if all shared their first tokens: the least that it can be."""
    crowd, card = file.agents, file.hardware
    own = crowd.positions - crowd.shared_tokens
    limits = bytes_of(card.vram_limit_gb), bytes_of(card.host_limit_gb)
    sums = arithmetic(engine, own, min(crowd.counts), *limits)
    for sentence in sums.sentences():
        course.tell(sentence)
    return sums


def _proves_nothing(course: Course, file: AgentsFile, sums: Arithmetic) -> list[str]:
    sentence = f"{min(file.agents.counts)} agents fit on the card together, so nothing would have to leave."
    fields = {"arithmetic": sums.sentences(), "status": "error", "error": sentence}
    course.write(FILE, {**dict.fromkeys(FIELDS, NOT_YET), "model": course.setup.named(file.model.name), **fields})
    return [sentence]


def _drawn(engine: RemoteEngine, file: AgentsFile, count: int, repetition: int) -> list[AgentScript]:
    return scripts(file, count, engine.description.vocab_size, repetition)


def _alone(course: Course, engine: RemoteEngine, file: AgentsFile, repetition: int, found: CrowdsMeasured) -> None:
    most = max(file.agents.counts)
    course.tell(f"Running {most} agents alone, for comparison")
    found.alone[repetition] = alone(course, engine, WAYS["lru"], _drawn(engine, file, most, repetition), file)


def _measure(
    course: Course, engine: RemoteEngine, file: AgentsFile, way: Way, repetition: int, found: CrowdsMeasured
) -> None:
    for count in file.agents.counts:
        course.check_time()
        crowd = together(course, engine, way, _drawn(engine, file, count, repetition), file)
        found.crowds.setdefault(way.name, {})[repetition, count] = crowd
        served = sum(agent.whole for agent in crowd.agents)
        course.tell(f"{way.name}: {served} of {count} agents served in {crowd.seconds:.1f} s")
    found.rows[way.name] = [
        row_of(way.name, count, found.of(way.name, count), found.alone, file.resamples) for count in file.agents.counts
    ]


def _compare(file: AgentsFile, found: CrowdsMeasured) -> None:
    found.compared = [
        entry
        for count in file.agents.counts
        for entry in comparisons({way: found.of(way, count) for way in found.crowds}, count, file.resamples)
    ]


def _fields(course: Course, file: AgentsFile, found: CrowdsMeasured) -> dict[str, Any]:
    assert found.sums is not None
    return {
        "timestamp": now(),
        "model": course.setup.named(file.model.name),
        "arithmetic": found.sums.sentences(),
        "demand_gb": found.sums.demand / GIB,
        "capacity_gb": found.sums.capacity / GIB,
        "ways": [row for rows in found.rows.values() for row in rows],
        "agents": [
            entry
            for way in found.crowds
            if not WAYS[way].recomputes
            for count in file.agents.counts
            for entry in agents_of(way, count, found.of(way, count), found.alone)
        ],
        "comparisons": found.compared,
    }


def judge(file: AgentsFile, found: CrowdsMeasured) -> list[str]:
    """Return the sentences of all that has to hold and does not."""
    failures = []
    for way in (WAYS[name] for name in found.crowds):
        for count in file.agents.counts:
            failures += _judge_part(way, count, found.of(way.name, count), found.alone)
    return failures


def _judge_part(
    way: Way, count: int, crowds: Sequence[tuple[int, CrowdRecord]], alone_: dict[int, list[AgentRecord]]
) -> list[str]:
    where = f"{way.name}, {count} agents"
    agents = [(agent, one) for r, crowd in crowds for agent, one in zip(crowd.agents, alone_[r], strict=False)]
    checks = {
        f"{where}: a text differs from the same agent alone.": way.recomputes
        or all(agent.same_as(one) for agent, one in agents),
        f"{where}: an agent was not served to its end.": not way.swaps or all(agent.whole for agent, _ in agents),
        f"{where}: no session left the device.": not way.swaps
        or all(any(swap["direction"] == "out" for swap in crowd.swaps) for _, crowd in crowds),
    }
    return [sentence for sentence, held in checks.items() if not held]
