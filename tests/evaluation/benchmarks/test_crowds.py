"""Crowds of users on simulated machines: their waits, their queues, and the traces that are played again."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise, product
from math import factorial, inf
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from djinn_evaluation.agents.replay.choosing import Belady, Djinn, LeastRecentlyUsed, LeastWaste, NeverSwap, SwapAtPause
from djinn_evaluation.agents.replay.people import GENERATED, generated
from djinn_evaluation.agents.replay.predict import MEMORY, PAUSES, TurnCosts
from djinn_evaluation.agents.replay.stage import Costs, Event, Policy, Score, Stage, Trace
from djinn_evaluation.benchmarks import crowds
from djinn_evaluation.benchmarks.crowds import DEFAULT, LRU, ORACLE, RULES, Cell, played
from djinn_evaluation.benchmarks.harness import Checks
from djinn_evaluation.benchmarks.people import load_of
from djinn_evaluation.intervals import percentile

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


@pytest.mark.parametrize("users", [1, 2, 7, 30])
@pytest.mark.parametrize(("thinking", "cost"), [(2.0, 0.1), (0.5, 1.0)])
def test_one_server_is_the_machine_repairman(users: int, thinking: float, cost: float) -> None:
    ratio = cost / thinking
    idle = 1 / sum(factorial(users) / factorial(users - k) * ratio**k for k in range(users + 1))
    assert load_of(users, thinking, {"server": cost}).per_second == pytest.approx((1 - idle) / cost, rel=1e-9)


@given(
    users=st.integers(1, 200),
    thinking=st.floats(0.01, 100),
    demands=st.dictionaries(st.sampled_from("abcd"), st.floats(1e-4, 10), min_size=1),
)
def test_no_resource_is_more_than_busy_and_no_user_waits_for_less_than_the_work(
    users: int, thinking: float, demands: dict[str, float]
) -> None:
    load = load_of(users, thinking, demands)
    assert all(part <= 1 + 1e-9 for part in load.busy.values())
    assert load.response_seconds >= sum(demands.values()) * (1 - 1e-9)
    assert load.per_second * (thinking + load.response_seconds) == pytest.approx(users, rel=1e-6)
    assert demands[load.busiest] == max(demands.values())


COSTS = Costs(slab=300, host=10**6, host_in=100.0, host_out=50.0, disk_in=10.0, disk_out=5.0, latency=0.0)


def turns(*names: str, apart: float = 10.0, size: int = 100) -> list[Event]:
    """A trace of one-second runs of these sessions, of `size` bytes, in this order."""
    events = []
    for number, name in enumerate(names):
        events.append(Event(time=number * apart, session=name, kind="run", bytes=size))
        events.append(Event(time=number * apart + 1.0, session=name, kind="stop", bytes=size))
    return events


def replayed(events: list[Event], policy: Policy, *, prefetch: bool = False, costs: Costs = COSTS) -> Score:
    return Stage(Trace.of("t", events, "test"), costs, policy, prefetch=prefetch).play()


def test_what_fits_never_waits_and_moves_nothing_but_the_copies() -> None:
    score = replayed(turns(*"abcabcabc"), LeastRecentlyUsed())
    assert (score.runs, score.stalls, score.bytes_in, score.bytes_out, score.most) == (9, [], 0, 300, 300)


def test_who_comes_back_waits_for_the_bytes_over_the_link() -> None:
    """By each rule; and who is dirty is copied before its place is free."""
    score = replayed(turns(*"abcda"), LeastRecentlyUsed())
    assert score.stalls == [pytest.approx(1.0)]  # 100 bytes at 100 a second; the others are clean by then
    assert (score.bytes_in, score.bytes_out) == (100, 400)
    assert replayed(turns(*"abcd", apart=1.5), LeastRecentlyUsed()).stalls == []  # a has been written through
    hurried = replayed(turns(*"ab", apart=1.5, size=200), LeastRecentlyUsed())
    assert hurried.stalls == [pytest.approx(200 / 50)]  # a stopped half a second ago
    refusing = replayed(turns(*"abcdde"), NeverSwap())
    assert (refusing.refused, refusing.stalls, refusing.bytes_in) == (3, [], 0)
    assert len(replayed(turns(*"ababab"), SwapAtPause()).stalls) == 4


def test_the_optimum_is_reached_where_one_knows_the_future() -> None:
    """Four sessions in turn over room for three: a card that keeps the last used always lacks the next one."""
    order = "abcd" * 6
    waits = [
        len(replayed(turns(*order), rule).stalls)
        for rule in (LeastRecentlyUsed(), Belady(Trace.of("t", turns(*order), "")))
    ]
    assert waits[0] == 20
    assert waits[1] == 6  # by hand: every third run, from the seventh on


def test_a_prefetch_on_focus_saves_the_wait() -> None:
    events = [*turns(*"abcda"), Event(time=35.0, session="a", kind="focused")]
    score = replayed(events, Djinn(), prefetch=True)
    assert score.stalls == []
    assert (score.prefetches.begun, score.prefetches.hits) == (1, 1)
    late = replayed([*turns(*"abcda"), Event(time=39.5, session="a", kind="focused")], Djinn(), prefetch=True)
    assert late.stalls == [pytest.approx(0.5)]
    assert (late.prefetches.hits, late.prefetches.late) == (0, 1)


def test_who_was_fetched_for_its_focus_is_not_the_first_to_leave_again() -> None:
    later = [("focused", "a", 60.0), ("run", "e", 70.0), ("stop", "e", 71.0), ("run", "a", 80.0), ("stop", "a", 81.0)]
    events = [Event(time=time, session=name, kind=kind, bytes=100) for kind, name, time in later]
    score = replayed([*turns(*"abcd"), *events], Djinn(), prefetch=True)
    assert score.stalls == []
    assert (score.prefetches.begun, score.prefetches.hits) == (1, 1)


def test_a_prefetch_that_nobody_uses_is_wasted() -> None:
    events = [*turns(*"abcd"), Event(time=35.0, session="a", kind="focused"), *turns(*"d", apart=1.0)]
    trace = [e for e in events if e.session != "d" or e.time >= 30.0] + [
        Event(time=300.0, session="b", kind="run", bytes=100),
        Event(time=301.0, session="b", kind="stop", bytes=100),
    ]
    score = replayed(trace, Djinn(), prefetch=True)
    assert (score.prefetches.begun, score.prefetches.hits, score.prefetches.wasted) == (1, 0, 1)


def test_a_run_that_finds_only_running_sessions_waits_for_the_first_to_stop() -> None:
    events = [
        Event(time=0.0, session="a", kind="run", bytes=200),
        Event(time=5.0, session="a", kind="stop", bytes=200),
        Event(time=1.0, session="b", kind="run", bytes=200),
        Event(time=2.0, session="b", kind="stop", bytes=200),
    ]
    score = replayed(events, LeastRecentlyUsed())
    assert score.stalls == [pytest.approx(4.0 + 200 / 50)]
    assert score.refused == 0


def test_a_run_that_finds_only_sessions_on_their_way_waits_for_the_first_to_come() -> None:
    """b is being fetched for its focus when a wants the room; it comes, leaves again, and no session is refused."""
    events = [
        *turns(*"abc", size=200),
        Event(time=23.0, session="b", kind="focused", bytes=200),
        Event(time=23.5, session="a", kind="run", bytes=200),
        Event(time=24.5, session="a", kind="stop", bytes=200),
    ]
    score = replayed(events, Djinn(), prefetch=True)
    assert score.refused == 0
    assert score.stalls[-1] == pytest.approx(25.0 + 2.0 - 23.5)  # b's 2 s end at 25, then a's own 2 s
    assert (score.prefetches.begun, score.prefetches.wasted) == (1, 1)


def test_the_gone_leave_before_the_present() -> None:
    events = [*turns(*"abcd"), Event(time=29.0, session="c", kind="gone")]
    stage = Stage(Trace.of("t", events, "test"), COSTS, Djinn(), prefetch=False)
    stage.play()
    assert stage.actors["c"].place == "host"
    assert {stage.actors[name].place for name in "abd"} == {"device"}


@pytest.mark.parametrize("name", GENERATED)
def test_a_generated_trace_is_whole_and_the_same_for_the_same_seed(name: str) -> None:
    trace = generated(name, seed=1, share=0.05)
    assert trace == generated(name, seed=1, share=0.05)
    assert trace != generated(name, seed=2, share=0.05)
    assert all(before.time <= after.time for before, after in pairwise(trace.events))
    assert all(event.bytes > 0 for event in trace.events if event.kind == "run")


@pytest.mark.parametrize("name", ["office", "sweeps"])
def test_every_rule_keeps_its_accounts_on_generated_work(name: str) -> None:
    trace = generated(name, seed=3, share=0.1)
    costs = Costs(slab=trace.demand // 3, host=trace.demand // 2, host_in=2e10, host_out=2e10, disk_in=2e9,
                  disk_out=2e9, latency=0.001)  # fmt: skip
    for rule in (Djinn(), LeastRecentlyUsed(), SwapAtPause(), Belady(trace)):
        for prefetch in (False, True):
            stage = Stage(trace, costs, rule, prefetch=prefetch)
            score = stage.play()
            on_device = sum(a.size for a in stage.actors.values() if a.place == "device")
            assert on_device <= score.most <= costs.slab
            assert score.refused == 0
            counts = score.prefetches
            assert counts.begun == counts.hits + counts.late + counts.wasted
            assert prefetch or counts.begun == 0


def test_a_trace_survives_its_file(tmp_path: Path) -> None:
    trace = generated("office", seed=0, share=0.02)
    trace.save(tmp_path / "t.json")
    again = Trace.load(tmp_path / "t.json")
    assert [(e.session, e.kind, e.bytes, e.state) for e in again.events] == [
        (e.session, e.kind, e.bytes, e.state) for e in trace.events
    ]


def test_runs_that_overlap_are_refused() -> None:
    run = Event(time=0.0, session="a", kind="run", bytes=1)
    with pytest.raises(ValueError, match="out of turn"):
        Trace.of("t", [run, run], "test")


def test_the_recorded_trace_was_recorded() -> None:
    trace = Trace.load(crowds.RECORDED)
    assert len(trace.sessions) == 12
    assert {"run", "stop", "focused", "expected"} <= {event.kind for event in trace.events}
