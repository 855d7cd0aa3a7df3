"""The replay of notebook work: traces that are whole, a stage whose accounting is right, rules that do as they say."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest

from djinn_evaluation.agents.replay.choosing import Belady, Djinn, LeastRecentlyUsed, NeverSwap, SwapAtPause
from djinn_evaluation.agents.replay.people import GENERATED, generated
from djinn_evaluation.agents.replay.stage import Costs, Event, Policy, Score, Stage, Trace
from djinn_evaluation.benchmarks import crowds

COSTS = Costs(slab=300, host=10**6, host_in=100.0, host_out=50.0, disk_in=10.0, disk_out=5.0, latency=0.0)


def turns(*names: str, apart: float = 10.0, size: int = 100) -> list[Event]:
    """A trace of one-second runs of these sessions, of `size` bytes, in this order."""
    events = []
    for number, name in enumerate(names):
        events.append(Event(time=number * apart, session=name, kind="run", bytes=size))
        events.append(Event(time=number * apart + 1.0, session=name, kind="stop", bytes=size))
    return events


def played(events: list[Event], policy: Policy, *, prefetch: bool = False, costs: Costs = COSTS) -> Score:
    return Stage(Trace.of("t", events, "test"), costs, policy, prefetch=prefetch).play()


def test_what_fits_never_waits_and_moves_nothing_but_the_copies() -> None:
    score = played(turns(*"abcabcabc"), LeastRecentlyUsed())
    assert (score.runs, score.stalls, score.bytes_in, score.bytes_out, score.most) == (9, [], 0, 300, 300)


def test_who_comes_back_waits_for_the_bytes_over_the_link() -> None:
    score = played(turns(*"abcda"), LeastRecentlyUsed())
    assert score.stalls == [pytest.approx(1.0)]  # 100 bytes at 100 a second; the others are clean by then
    assert (score.bytes_in, score.bytes_out) == (100, 400)


def test_who_is_dirty_is_copied_before_its_place_is_free() -> None:
    score = played(turns(*"abcd", apart=1.5), LeastRecentlyUsed(), costs=COSTS)
    assert score.stalls == []  # a has been written through
    hurried = played(turns(*"ab", apart=1.5, size=200), LeastRecentlyUsed(), costs=COSTS)
    assert hurried.stalls == [pytest.approx(200 / 50)]  # a stopped half a second ago


def test_never_swap_refuses_what_does_not_fit() -> None:
    score = played(turns(*"abcdde"), NeverSwap())
    assert (score.refused, score.stalls, score.bytes_in) == (3, [], 0)


def test_swap_at_pause_waits_at_every_return() -> None:
    assert len(played(turns(*"ababab"), SwapAtPause()).stalls) == 4


def test_the_optimum_is_reached_where_one_knows_the_future() -> None:
    """Four sessions in turn over room for three: a card that keeps the last used always lacks the next one."""
    order = "abcd" * 6
    waits = [
        len(played(turns(*order), rule).stalls)
        for rule in (LeastRecentlyUsed(), Belady(Trace.of("t", turns(*order), "")))
    ]
    assert waits[0] == 20
    assert waits[1] == 6  # by hand: every third run, from the seventh on


def test_a_prefetch_on_focus_saves_the_wait() -> None:
    events = [*turns(*"abcda"), Event(time=35.0, session="a", kind="focused")]
    score = played(events, Djinn(), prefetch=True)
    assert score.stalls == []
    assert (score.prefetches.begun, score.prefetches.hits) == (1, 1)
    late = played([*turns(*"abcda"), Event(time=39.5, session="a", kind="focused")], Djinn(), prefetch=True)
    assert late.stalls == [pytest.approx(0.5)]
    assert (late.prefetches.hits, late.prefetches.late) == (0, 1)


def test_who_was_fetched_for_its_focus_is_not_the_first_to_leave_again() -> None:
    later = [("focused", "a", 60.0), ("run", "e", 70.0), ("stop", "e", 71.0), ("run", "a", 80.0), ("stop", "a", 81.0)]
    events = [Event(time=time, session=name, kind=kind, bytes=100) for kind, name, time in later]
    score = played([*turns(*"abcd"), *events], Djinn(), prefetch=True)
    assert score.stalls == []
    assert (score.prefetches.begun, score.prefetches.hits) == (1, 1)


def test_a_prefetch_that_nobody_uses_is_wasted() -> None:
    events = [*turns(*"abcd"), Event(time=35.0, session="a", kind="focused"), *turns(*"d", apart=1.0)]
    trace = [e for e in events if e.session != "d" or e.time >= 30.0] + [
        Event(time=300.0, session="b", kind="run", bytes=100),
        Event(time=301.0, session="b", kind="stop", bytes=100),
    ]
    score = played(trace, Djinn(), prefetch=True)
    assert (score.prefetches.begun, score.prefetches.hits, score.prefetches.wasted) == (1, 0, 1)


def test_a_run_that_finds_only_running_sessions_waits_for_the_first_to_stop() -> None:
    events = [
        Event(time=0.0, session="a", kind="run", bytes=200),
        Event(time=5.0, session="a", kind="stop", bytes=200),
        Event(time=1.0, session="b", kind="run", bytes=200),
        Event(time=2.0, session="b", kind="stop", bytes=200),
    ]
    score = played(events, LeastRecentlyUsed())
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
    score = played(events, Djinn(), prefetch=True)
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
