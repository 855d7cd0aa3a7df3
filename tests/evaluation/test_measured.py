"""Figures of `whitebox` that could be read off another quantity than the one that names them."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from djinn_evaluation import course
from djinn_evaluation.link import absence
from djinn_jupyter.api.session import RemoteSession
from djinn_jupyter.engine.memory.budget import Budget
from djinn_jupyter.errors import DjinnError
from djinn_jupyter.units import GIB
from djinn_jupyter.wire.nouns import BudgetStatistics, Holding, Transfer
from tests.faults.inside import OURS_ALONE, Inside
from tests.faults.test_keys import NOTHING, PRESSURE, STEERING, TRIALS


@pytest.fixture(scope="module")
def inside(tmp_path_factory: pytest.TempPathFactory) -> Inside:
    return Inside(tmp_path_factory.mktemp("inside"))


def results(inside: Inside, *settings: str) -> Any:
    return inside.run("whitebox", *settings, flags=OURS_ALONE).file("djinn_breakpoint_results.json")


def test_what_is_preallocated_is_read_off_the_slab(inside: Inside) -> None:
    """The figure is the slab's before the run does anything."""
    desk = inside.desk()
    desk.open("earlier")
    desk.run(tuple(range(1, 20)), 2, "earlier")
    there = sum(slab.statistics().bytes_allocated for slab in desk.engine.slabs)
    assert results(inside, *NOTHING)["memory_breakdown"]["vmu_slab_preallocated_gb"] == there / GIB > 0


def test_keys_and_values_at_a_stop_are_not_counted_with_what_the_stop_keeps(inside: Inside) -> None:
    """The stop's hidden state is on the device as well, and no part of them."""
    found = results(inside, *TRIALS)
    of_a_session = found["memory_breakdown"]["kv_cache_per_session_gb"] * GIB
    for entry in found["token_accuracy"]["entries"]:
        assert entry["kv_bytes_resident_during_pause"] == of_a_session > 0


def test_a_checkpoint_is_split_into_what_is_waited_for_and_what_is_copied(inside: Inside) -> None:
    for entry in results(inside, *TRIALS)["token_accuracy"]["entries"]:
        assert entry["checkpoint_time_ms"] > entry["checkpoint_copy_ms"] > 0
        assert entry["restore_time_ms"] > entry["restore_copy_ms"] > 0
        assert entry["kv_bytes_resident_during_pause"] > 0 == entry["kv_bytes_resident_after_swap_out"]
        assert entry["checkpoint_time_ms"] >= entry["checkpoint_dispatch_ms"] > 0
        assert entry["still_dispatch_ms"] > 0


def test_a_restore_ends_where_the_stopped_pass_goes_on(inside: Inside, monkeypatch: pytest.MonkeyPatch) -> None:
    """Generating takes a long time, and none of it is in the two restore times of steering."""
    later = [0.0]
    resume = RemoteSession.resume

    def slowly(session: RemoteSession, *others: Any, **more: Any) -> Any:
        later[0] += 1000.0
        return resume(session, *others, **more)

    monkeypatch.setattr(RemoteSession, "resume", slowly)
    perf_counter = time.perf_counter
    clock = SimpleNamespace(perf_counter=lambda: perf_counter() + later[0], monotonic=time.monotonic)
    monkeypatch.setattr(course, "time", clock)
    found = results(inside, *STEERING)["activation_steering"]
    times = [found["baseline_restore_time_ms"], found["steered_restore_time_ms"]]
    times += [milliseconds for pair in found["restore_time_pairs_ms"] for milliseconds in pair]
    assert all(0 < milliseconds < 1e6 for milliseconds in times)


def test_a_cell_of_the_breakdown_is_read_and_what_is_computed_is_named_so(
    inside: Inside, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = results(inside, *NOTHING)["memory_breakdown"]
    assert plain["kv_cache_per_session_gb"] == plain["kv_cache_per_session_gb_computed"] > 0
    assert plain["activation_stack_gb"] >= plain["activation_stack_gb_computed"] > 0
    statistics = Budget.statistics

    def holds_more(budget: Budget) -> BudgetStatistics:
        found = statistics(budget)
        more = tuple(Holding(kind=one.kind, bytes_held=3 * one.bytes_held) for one in found.holdings)
        return msgspec.structs.replace(found, holdings=more)

    monkeypatch.setattr(Budget, "statistics", holds_more)
    changed = results(inside, *NOTHING)["memory_breakdown"]
    assert changed["activation_stack_gb"] == 3 * plain["activation_stack_gb"]
    assert changed["activation_stack_gb_computed"] == plain["activation_stack_gb_computed"]


def test_pressure_at_the_end_of_whitebox_has_its_own_log(inside: Inside) -> None:
    ran = inside.run("whitebox", *NOTHING, *PRESSURE, flags=OURS_ALONE)
    own, whole = ((ran.folder / name).read_text() for name in ("exp3_memory_pressure_final.log", "exp3_osdi.log"))
    assert "The demand does not exceed the capacity" in own
    assert "Plain Hugging Face" not in own
    assert own in whole


class Asked:
    """The parts of an engine and a session that leaving needs; records the order of the calls."""

    name = "a"

    def __init__(self, transfer: Transfer | None) -> None:
        self.heard: list[str] = []
        reply = SimpleNamespace(result=lambda: self.note("left") or self.swapped(transfer))
        self.channel = SimpleNamespace(ask=lambda request: self.note(type(request).__name__) or reply)

    def note(self, word: str) -> None:
        self.heard.append(word)

    def swapped(self, transfer: Transfer | None) -> Any:
        from djinn_jupyter.wire.replies import Swapped

        return Swapped(session=None, transfer=transfer)  # type: ignore[arg-type]

    def session(self, name: str) -> Any:
        return SimpleNamespace(describe=lambda: self.note(name))

    def describe(self) -> Any:
        return SimpleNamespace(device_bytes=0)

    def swap_in(self) -> Any:
        self.note("back")
        return Transfer(direction="in", tier="host", bytes_moved=9, seconds=2.0, cause="asked", copy_seconds=0.25)


def test_the_bystander_asks_at_rest_and_behind_the_one_that_leaves() -> None:
    moved = Transfer(direction="out", tier="host", bytes_moved=7, seconds=0.5, cause="asked", copy_seconds=0.125)
    engine: Any = Asked(moved)
    found = absence(engine, engine)
    assert engine.heard == ["bystander", "SwapOut", "bystander", "left", "back"]
    assert (found.bytes_moved, found.copy_ms) == (7, 125.0), "not the half second of the move with its queue"
    assert (found.bytes_back, found.back_copy_ms) == (9, 250.0)
    with pytest.raises(DjinnError, match="nothing moved"):
        absence(Asked(None), engine)  # type: ignore[arg-type]
