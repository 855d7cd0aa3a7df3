"""Agents before any engine runs: their scripts, their percentiles, the ways of keeping them, and the verdict."""

from __future__ import annotations

import itertools
import random
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np
import pytest

from djinn_evaluation.agents import experiment
from djinn_evaluation.agents.crowd import CrowdCounts, CrowdRecord, comparisons, moves
from djinn_evaluation.agents.experiment import CrowdsMeasured, events, judge, predicted
from djinn_evaluation.agents.living import (
    WAYS,
    AgentRecord,
    AgentScript,
    ReplyRecord,
    by_engine,
    pauses_of,
    recorded_pauses,
    scripts,
)
from djinn_evaluation.agents.replay.predict import predict
from djinn_evaluation.configuration.reading import read
from djinn_evaluation.configuration.sections import WAY_NAMES, AgentsFile
from djinn_evaluation.course import Course, begin
from djinn_evaluation.intervals import of_agents, percentile, ratios_of
from djinn_evaluation.link import Link
from djinn_jupyter.errors import UsageError
from djinn_jupyter.units import GIB

SMALL = read("agents_small.yaml", AgentsFile)


@pytest.mark.parametrize("count", [1, 2, 7, 100])
@pytest.mark.parametrize("percent", [0, 50, 90, 99, 100])
def test_percentiles_are_those_of_numpy(count: int, percent: int) -> None:
    readings = [random.Random(count).lognormvariate(0, 1) for _ in range(count)]
    assert percentile(readings, percent) == pytest.approx(float(np.percentile(readings, percent)), rel=1e-12)


def test_the_interval_resamples_agents_and_not_turns() -> None:
    """Turns of one agent that are alike tell no more than one of them."""
    few = [[draw.gauss(100, 10)] for draw in [random.Random(3)] for _ in range(20)]
    many = [turns * 50 for turns in few]
    once, often = of_agents([few], 300)["p50"], of_agents([many], 300)["p50"]
    assert once["low"] < once["value"] < once["high"]
    assert often["high"] - often["low"] > 0.8 * (once["high"] - once["low"])


def test_repetitions_that_differ_widen_the_interval() -> None:
    """A machine that was twice as slow in every second repetition."""
    draw = random.Random(2)
    crowds = [[[factor * draw.gauss(100, 1)] for _ in range(40)] for factor in (1, 2) * 3]
    found = of_agents(crowds, 300)["p50"]
    assert found["low"] < 110
    assert found["high"] > 190


def test_a_slower_way_is_refuted_and_an_equal_one_is_undecided() -> None:
    draw = random.Random(1)
    under = [[[draw.gauss(100, 5) for _ in range(3)] for _ in range(10)] for _ in range(6)]
    slower = [[[2 * turn for turn in turns] for turns in crowd] for crowd in under]
    assert {p: found["lower"] for p, found in ratios_of(slower, under, 200).items()} == dict.fromkeys(
        ("p50", "p90", "p99"), "refuted"
    )
    assert ratios_of(under, slower, 200)["p50"]["lower"] == "holds"
    assert ratios_of(under, under, 200)["p50"]["lower"] == "undecided"
    assert ratios_of(slower[:5], under[:5], 200)["p50"]["lower"] == "undecided", "of too few repetitions"


def test_scripts_are_the_same_for_every_way_and_number_of_agents() -> None:
    few, many = scripts(SMALL, 4, 1000), scripts(SMALL, 8, 1000)
    assert many[:4] == few
    assert scripts(SMALL, 4, 1000, repetition=1) != few
    assert [bool(script.prefix) for script in many].count(True) == 4, "half of them share their first tokens"
    assert [script.kind for script in few] == list(SMALL.pauses.kinds[:4])
    arrivals = [script.turns[0].pause_seconds for script in many]
    assert arrivals == sorted(arrivals)


def test_an_agent_knows_the_length_of_a_tool_call_and_of_nothing_else() -> None:
    for script in scripts(SMALL, 12, 1000):
        assert [turn.known for turn in script.turns] == [False, *[script.kind == "tool"] * (SMALL.agents.turns - 1)]
        if script.kind == "tool":
            assert {turn.pause_seconds for turn in script.turns[1:]} <= {*SMALL.pauses.tool_seconds}


def test_pauses_have_heavy_tails_and_come_in_bursts() -> None:
    draw = random.Random(0)
    free = msgspec.structs.replace(SMALL.pauses, longest_seconds=1e6)
    heavy = [next(pauses_of("heavy_tailed", free, [1.0], draw)) for _ in range(2000)]
    assert np.median(heavy) == pytest.approx(free.median_seconds, rel=0.1)
    assert np.mean(heavy) > 1.5 * np.median(heavy)
    burst = pauses_of("burst", free, [1.0], draw)
    lengths = [next(burst) for _ in range(9)]
    assert [length == free.burst_seconds for length in lengths] == [True, True, False] * 3
    assert max(recorded_pauses(SMALL.pauses)) > 10 * np.median(recorded_pauses(SMALL.pauses))


@pytest.mark.parametrize("text", ["{}", '{"seconds": []}', '{"seconds": [1, -1]}', "seconds", '{"seconds": 5}', "[1]"])
def test_a_file_without_pauses_is_refused_in_one_sentence(tmp_path: Path, text: str) -> None:
    file = tmp_path / "pauses.json"
    file.write_text(text)
    with pytest.raises(UsageError, match="holds no pauses: a JSON object with `seconds`"):
        recorded_pauses(msgspec.structs.replace(SMALL.pauses, recorded=str(file)))
    with pytest.raises(UsageError, match="cannot be read"):
        recorded_pauses(msgspec.structs.replace(SMALL.pauses, recorded=str(tmp_path / "none.json")))


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("ways=[lru, lru]", "ways names one twice"),
        ("ways=[fifo]", "ways"),
        ("agents.turns=1", "agents.turns"),
        ("agents.counts=[8, 8]", "names a number twice"),
        ("pauses.kinds=[]", "pauses.kinds"),
        ("agents.think=3", "there is no key agents.think"),
    ],
)
def test_a_mistake_in_the_file_is_one_sentence(setting: str, said: str) -> None:
    with pytest.raises(UsageError) as refused:
        read("agents_small.yaml", AgentsFile, [setting])
    assert said in str(refused.value)


def test_each_way_after_the_first_changes_one_option_of_the_engine() -> None:
    """Or none: a hint is given by the agent."""
    made = [WAYS[name].options(SMALL) for name in ("lru", "time_out", "learned", "hinted_no_prefetch", "hinted")]
    changed = [{key for key in after if after[key] != before[key]} for before, after in itertools.pairwise(made)]
    assert changed == [{"idle_swap_seconds"}, {"evict_by_last_use"}, set(), {"no_prefetch"}]
    assert [WAYS[name].hints for name in WAY_NAMES] == [False] * 5 + [True] * 2
    assert [len(ways) for _, ways in by_engine(SMALL)] == [2, 1, 1, 2, 1]


# ------------------------------------------------------------------------------------------------- the verdict


def lived(script: AgentScript, *, turns: int = 3, token: int = 5, milliseconds: float = 10.0) -> AgentRecord:
    replies = [
        ReplyRecord(
            tokens=(token, number),
            logits=((1, 0.5),),
            first_ms=milliseconds,
            token_ms=2.0,
            asked=number,
            ended=number + 0.5,
        )
        for number in range(turns)
    ]
    return AgentRecord(script=script, replies=replies, refused=None if turns == 3 else "No room.")


def crowd(agents: list[AgentRecord], *, swaps: int = 1) -> CrowdRecord:
    moved = {"direction": "out", "cause": "pressure", "bytes": 8, "ms": 1.0}
    none = dict.fromkeys(("begun", "hits", "late", "wasted"), 0)
    return CrowdRecord(
        agents=agents, swaps=[moved] * swaps, copies=[], prefetches=none, counts=CrowdCounts(), seconds=1.0
    )


def judged(way: Any, agents: list[AgentRecord], *, swaps: int = 1) -> list[str]:
    file = msgspec.structs.replace(SMALL, agents=msgspec.structs.replace(SMALL.agents, counts=(4,)))
    alone = [lived(script) for script in scripts(SMALL, 4, 1000)]
    return judge(file, CrowdsMeasured(alone={0: alone}, crowds={way: {(0, 4): crowd(agents, swaps=swaps)}}))


def test_each_input_of_the_verdict_can_fail_it() -> None:
    drawn = scripts(SMALL, 4, 1000)
    whole = [lived(script) for script in drawn]
    other = replace(whole[0].replies[0], logits=((1, 0.25),))
    odd = [AgentRecord(script=drawn[0], replies=[other, *whole[0].replies[1:]]), *whole[1:]]
    cut = [lived(drawn[0], turns=2), *whole[1:]]
    assert judged("hinted", whole) == []
    assert judged("hinted", odd) == ["hinted, 4 agents: a text differs from the same agent alone."]
    assert judged("hinted", cut) == ["hinted, 4 agents: an agent was not served to its end."]
    assert judged("hinted", whole, swaps=0) == ["hinted, 4 agents: no session left the device."]
    assert judged("never", cut, swaps=0) == [], "refusing is what it does"
    assert judged("never", odd, swaps=0) == ["never, 4 agents: a text differs from the same agent alone."]
    assert judged("recompute", odd, swaps=0) == [], "other passes round otherwise"


def test_a_way_that_refused_agents_is_not_compared() -> None:
    drawn = scripts(SMALL, 4, 1000)
    lru = [(0, crowd([lived(script) for script in drawn]))]
    quick = [(0, crowd([lived(script, milliseconds=1.0) for script in drawn]))]
    cut = [(0, crowd([lived(script, turns=2, milliseconds=1.0) for script in drawn]))]
    found = comparisons({"lru": lru, "hinted": quick, "never": cut}, 4, 100)
    assert [(entry["way"], entry["first_token"]["p50"]["value"]) for entry in found] == [("hinted", 0.1)]


def test_the_intervals_of_a_way_are_drawn_when_it_was_measured(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Not with every partial file: of six repetitions of 50 and 80 agents they took twenty minutes."""
    file = msgspec.structs.replace(SMALL, repetitions=2)
    drawn, written = list[str](), list[dict[str, Any]]()
    engine: Any = SimpleNamespace(description=SimpleNamespace(device="cpu", vocab_size=1000))
    sums: Any = SimpleNamespace(exceeds=True, sentences=list, demand=GIB, capacity=GIB)

    def together(course: Any, engine: Any, way: Any, agents: Any, file: Any) -> CrowdRecord:
        return crowd([lived(script) for script in agents])

    def alone(course: Any, engine: Any, way: Any, agents: Any, file: Any) -> list[AgentRecord]:
        return [lived(script) for script in agents]

    def row_of(way: str, count: int, *readings: Any) -> dict[str, Any]:
        drawn.append(way)
        return {"way": way, "agents": count}

    def compared(crowds: Any, count: int, resamples: int) -> list[dict[str, Any]]:
        drawn.append("comparisons")
        return [{"agents": count, "repetitions": len(crowds.get("lru", ()))}]

    monkeypatch.setattr(experiment, "engine_for", lambda *asked, **options: nullcontext(engine))
    link = Link(copies={"in": [(1, 1.0)], "out": [(1, 1.0)]})
    for name in ("foretold", "shape_of", "_require", "vllm_beside", "predicted"):
        monkeypatch.setattr(experiment, name, lambda *given: None)
    monkeypatch.setattr(experiment, "measured_link", lambda *given: link)
    monkeypatch.setattr(experiment, "_arithmetic", lambda *given: sums)
    for double in (together, alone, row_of):
        monkeypatch.setattr(experiment, double.__name__, double)
    monkeypatch.setattr(experiment, "comparisons", compared)
    monkeypatch.setattr(Course, "write_partial", lambda self, file, names, fields: written.append(fields))
    assert experiment.run(begin(tmp_path, "run.log", terminal=False), file) == []
    parts = len(file.agents.counts)
    assert drawn == [*(way for way in WAY_NAMES for _ in range(parts)), *["comparisons"] * parts] * 2
    assert written[-1]["comparisons"] == [{"agents": count, "repetitions": 2} for count in file.agents.counts]


def test_moves_are_counted_by_their_cause() -> None:
    swaps = [
        {"direction": "out", "cause": "pressure", "bytes": 3, "ms": 1.0},
        {"direction": "in", "cause": "needed", "bytes": 3, "ms": 4.0},
        {"direction": "in", "cause": "prefetch", "bytes": 3, "ms": 9.0},
    ]
    found = moves(swaps)
    assert (found["out"], found["back_when_needed"], found["back_ahead"], found["waited_ms"]) == (1, 1, 1, 4.0)


# ---------------------------------------------------------------------------------------------- the simulator


def test_the_simulator_is_asked_with_scripts_and_times_alone() -> None:
    [script] = scripts(SMALL, 1, 1000)
    asked = events([lived(script)], 900)
    assert [turn["bytes"] for turn in asked] == sorted(turn["bytes"] for turn in asked)
    assert (asked[-1]["bytes"], asked[-1]["last"], asked[-1]["rest"]) == (900, True, None)
    pauses = [turn.pause_seconds for turn in script.turns]
    assert [turn["rest"] for turn in asked[:-1]] == pauses[1:]
    assert asked[1]["time"] == pytest.approx(pauses[0] + 0.5 + pauses[1]), "a turn takes half a second alone"


def test_in_the_simulation_agents_in_turn_are_the_worst_of_lru_and_hints_mend_it() -> None:
    turns = [
        {"session": f"a{n}", "time": 100.0 * k + 10.0 * n, "seconds": 1.0, "bytes": 10**8, "rest": 99.0, "last": k == 3}
        for n in range(10)
        for k in range(4)
    ]
    ways = {
        name: {
            "swaps": way.swaps,
            "by_last_use": way.by_last_use,
            "hints": way.hints,
            "prefetches": way.prefetches,
            "idle_seconds": None,
        }
        for name, way in WAYS.items()
        if name in ("never", "lru", "hinted")
    }
    link = {"in": 1e8, "out": 1e8}
    asked = {"slab": 4 * 10**8, "host": None, "link": link, "ways": ways, "parts": {"10": turns}}
    found = {name: parts["10"] for name, parts in predict(asked).items()}
    assert found["never"]["refused"] > 0
    assert found["lru"]["turns_that_waited"] == 27, "every turn after the first, but where others have ended"
    assert found["lru"]["refused"] == found["hinted"]["refused"] == 0
    assert found["hinted"]["waited_ms"] < 0.1 * found["lru"]["waited_ms"]


def test_a_simulator_that_is_late_loses_no_measurement(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = msgspec.structs.replace(SMALL, agents=msgspec.structs.replace(SMALL.agents, counts=(1,)))
    alone = [lived(script) for script in scripts(file, 1, 1000)]
    sums: Any = SimpleNamespace(capacity=900, weights=100, host=None, per_session=90)
    link = Link(copies={"in": [(1, 1.0)], "out": [(1, 1.0)]})
    asked = (begin(tmp_path, "run.log", terminal=False), file, sums, link, alone, {"lru": {1: [crowd(alone)]}})
    monkeypatch.setattr(experiment, "SECONDS", 0.0)
    found = predicted(*asked)
    assert (found["status"], found["reason"]) == ("error", "the simulator did not answer within 0.0 seconds")
