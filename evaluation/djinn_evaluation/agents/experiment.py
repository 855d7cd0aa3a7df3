"""The run of `agents`: the arithmetic, every agent alone, and the crowd under each way of keeping those that pause."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from djinn_evaluation.agents.beside_vllm import vllm_beside
from djinn_evaluation.agents.crowd import CrowdRecord, alone, together
from djinn_evaluation.agents.living import AgentRecord
from djinn_evaluation.agents.prediction import predicted
from djinn_evaluation.agents.rows import agents_of, comparisons, row_of
from djinn_evaluation.agents.script import AgentScript, recorded_pauses, scripts
from djinn_evaluation.agents.ways import WAYS, Way, by_engine
from djinn_evaluation.configuration.agents import AgentsFile
from djinn_evaluation.course import NOT_YET, Course, now
from djinn_evaluation.link import Link, TimedCopy, measured_link
from djinn_evaluation.memory import bytes_of
from djinn_evaluation.pressure.arithmetic import Arithmetic, arithmetic
from djinn_evaluation.serving import engine_for
from djinn_evaluation.shape import Shape, foretold, shape_of
from djinn_jupyter.api.engine import RemoteEngine
from djinn_jupyter.errors import UsageError
from djinn_jupyter.units import GIB

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
    beside = {
        "link": link.fields(found.copies),
        "vllm": vllm_beside(course, file, found.sums, found.alone),
        "prediction": _prediction(course, file, found, link),
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


def _prediction(course: Course, file: AgentsFile, found: CrowdsMeasured, link: Link) -> dict[str, Any]:
    assert found.sums is not None
    counts = file.agents.counts
    crowds = {way: {count: [crowd for _, crowd in found.of(way, count)] for count in counts} for way in found.crowds}
    return predicted(course, file, found.sums, link, found.alone[0], crowds)


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
