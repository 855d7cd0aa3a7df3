"""Crowds of agents in the replay: the default waits as least-recently-used order does, and half as long by hints."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from math import inf

import pytest

from djinn_evaluation.agents.replay.choosing import LeastRecentlyUsed, LeastWaste
from djinn_evaluation.agents.replay.predict import MEMORY, PAUSES, TurnCosts
from djinn_evaluation.agents.replay.stage import Event, Stage, Trace
from djinn_evaluation.benchmarks.crowds import DEFAULT, LRU, ORACLE, RULES, Cell, played
from djinn_evaluation.benchmarks.harness import Checks
from djinn_evaluation.intervals import percentile
from tests.evaluation.benchmarks.test_replay import COSTS, turns

TURNS = TurnCosts(
    first_turn=0.03, turn=0.02, first_token=0.01, token_bytes=8192.0, latency=0.003, recompute=128 * 8192 / 0.012
)
LINK = 5e9


def waits(cell: Cell, rule: str, repetitions: int = 3) -> list[float]:
    scores = [played(cell, RULES[rule], TURNS, LINK, number, Checks()) for number in range(repetitions)]
    return [wait for score in scores for wait in score.returns]


@pytest.mark.parametrize(("pauses", "memory"), list(product(("heavy tails", "bursts"), MEMORY)))
def test_where_no_pause_is_known_the_default_waits_as_least_recently_used_does(pauses: str, memory: str) -> None:
    cell = Cell(agents=24, pauses=pauses, prompts="own", memory=memory)
    assert waits(cell, DEFAULT) == waits(cell, LRU)
    assert any(waits(cell, LRU))


@pytest.mark.parametrize(("agents", "memory"), [(8, "two thirds"), (24, "a third"), (24, "two thirds")])
def test_where_pauses_are_known_the_default_waits_half_as_long_at_p99(agents: int, memory: str) -> None:
    cell = Cell(agents=agents, pauses="tool calls", prompts="own", memory=memory)
    ours, theirs, best = (waits(cell, rule) for rule in (DEFAULT, LRU, ORACLE))
    assert percentile(ours, 99) <= percentile(theirs, 99) / 2
    assert sum(best) <= sum(ours) < sum(theirs)


@pytest.mark.parametrize("rule", RULES)
def test_every_rule_plays_all_turns_of_every_kind_of_pause(rule: str) -> None:
    for pauses in PAUSES:
        score = played(
            Cell(agents=8, pauses=pauses, prompts="shared", memory="a tenth"), RULES[rule], TURNS, LINK, 0, Checks()
        )
        assert score.runs == 8 * 4
        assert rule == "never swap" or len(score.returns) == 8 * 3


def test_a_program_pauses_after_its_turn_and_a_person_at_his_time() -> None:
    """b comes back at 4 s, where a has the device until 6; what b does at 30 s comes so much later for a program."""
    events = [
        *turns("b", size=200),
        Event(time=2.0, session="a", kind="run", bytes=200),
        Event(time=6.0, session="a", kind="stop", bytes=200),
        *(Event(time=time, session="b", kind=kind, bytes=200) for time, kind in _RUNS),
    ]
    found = {}
    for in_turn in (False, True):
        stage = Stage(Trace.of("t", events, "test"), COSTS, LeastRecentlyUsed(), prefetch=False, in_turn=in_turn)
        found[in_turn] = (stage.play(), stage.actors["b"])
    (person, his), (program, its) = found.values()
    assert person.returns[0] == program.returns[0] > 0
    assert its.until - his.until == pytest.approx(program.returns[0])


_RUNS = ((4.0, "run"), (5.0, "stop"), (30.0, "run"), (31.0, "stop"))


@pytest.mark.parametrize(("recompute", "moved"), [(0.0, True), (1e-3, True), (inf, False)])
def test_least_waste_computes_anew_what_is_cheaper_than_to_copy(recompute: float, moved: bool) -> None:
    costs = replace(COSTS, recompute=recompute)
    stage = Stage(Trace.of("t", turns(*"abcdab"), "test"), costs, LeastWaste(), prefetch=False)
    assert bool(stage.play().bytes_in) == moved
