"""What is measured of a pause: what is released, what is copied, what is waited for."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
import torch

from djinn_evaluation import course
from djinn_evaluation.baselines import weights
from djinn_evaluation.baselines.asking import LEAST_VOCABULARY
from djinn_evaluation.course import Unmeasured
from djinn_evaluation.link import absence
from djinn_evaluation.memory import PROCESS, counter_of
from djinn_evaluation.whitebox import pause
from djinn_evaluation.whitebox.pause import DROWNED, PauseReadings, prompts_of
from djinn_jupyter.api.session import RemoteSession
from djinn_jupyter.engine.memory.budget import Budget
from djinn_jupyter.engine.residency.eviction import Eviction
from djinn_jupyter.errors import DjinnError, SlabFull
from djinn_jupyter.units import GIB, MIB
from djinn_jupyter.wire.nouns import BudgetStatistics, Holding, Transfer
from tests.faults.inside import OURS_ALONE, Inside
from tests.faults.test_keys import CARD, NOTHING, OTHER, PRESSURE, STEERING, TRIALS


def readings(
    loaded: int, stopped: int, held: int, asleep: int | None = None, books: tuple[int, int] = (0, 0), by: str = "it"
) -> PauseReadings:
    during = ((0.0, stopped), (1.0, held))
    return PauseReadings(loaded=loaded, stopped=stopped, during=during, asleep=asleep, measured_by=by, books=books)


@pytest.mark.parametrize(
    ("found", "released", "needs_all"),
    [
        (readings(100, 120, 120), False, True),
        (readings(100, 120, 111), False, True),
        (readings(100, 120, 110), True, True),
        (readings(100, 120, 99), True, False),
        (readings(100, 120, 120, asleep=20), False, False),
        (readings(100, 120, 100, asleep=100), True, True),
    ],
)
def test_what_is_released_and_needed_follows_from_the_readings(
    found: PauseReadings, released: bool, needs_all: bool
) -> None:
    assert (found.released, found.needs_all) == (released, needs_all)


@pytest.mark.parametrize(
    ("standing", "booked", "held", "released"),
    [
        (99 * MIB, 0, 400 * MIB, None),  # the books say that it left, the heap of the process is as large as before
        (99 * MIB, 99 * MIB, 301 * MIB, None),
        (99 * MIB, 99 * MIB, 400 * MIB, False),
        (99 * MIB, 0, 301 * MIB, True),
        (100 * MIB, 0, 400 * MIB, False),  # above the heap the process tells
        (100 * MIB, 100 * MIB, 301 * MIB, True),
    ],
)
def test_few_bytes_in_a_process_tell_only_what_the_books_say_too(
    standing: int, booked: int, held: int, released: bool | None
) -> None:
    found = readings(300 * MIB, 400 * MIB, held, books=(standing, booked), by=PROCESS)
    assert found.released is DROWNED if released is None else found.released is released
    driver = replace(found, measured_by="NVML")
    assert driver.released is (held < 400 * MIB), "the driver counts no heap"


def test_where_sessions_left_before_all_stood_no_release_can_be_seen() -> None:
    found = replace(readings(100, 110, 108), gone=1)
    assert isinstance(found.released, Unmeasured)
    assert isinstance(readings(100, 100, 90).released, Unmeasured), "nor where the stops take nothing"
    assert isinstance(found.fields(2)["vram_per_paused_session_mb"], Unmeasured)


def test_the_fields_are_those_of_the_readings() -> None:
    fields = readings(GIB, GIB + 4 * MIB, GIB + MIB, asleep=MIB).fields(2)
    assert (fields["vram_before_pause_gb"], fields["vram_per_paused_session_mb"]) == (1.0, 2.0)
    assert fields["vram_variation_during_pause_gb"] == 3 * MIB / GIB
    assert fields["vram_under_nap_gb"] == MIB / GIB


def test_every_session_has_a_prompt_of_its_own() -> None:
    prompts = prompts_of(40, 200)
    assert len({tuple(prompt) for prompt in prompts}) == 200
    assert {token for prompt in prompts for token in prompt} <= {*range(1, LEAST_VOCABULARY)}


def test_without_a_gpu_the_counter_is_the_processs_own_memory() -> None:
    """It sees a tensor that the process makes and drops, which is large enough to be mapped for itself."""
    with counter_of("cpu", os.getpid()) as counter:
        before = counter.read()
        kept = torch.ones(64 << 20, dtype=torch.uint8)
        held = counter.read()
        del kept
        after = counter.read()
    assert counter.measured_by == "the process's own memory"
    assert held - before > 48 << 20
    assert held - after > 48 << 20


@pytest.fixture(scope="module")
def inside(tmp_path_factory: pytest.TempPathFactory) -> Inside:
    return Inside(tmp_path_factory.mktemp("inside"))


def demo(inside: Inside) -> Any:
    ran = inside.run("whitebox", *OTHER, flags=OURS_ALONE)
    table = ran.file("comparative_results.json")["summary_table"]
    found = ran.file("djinn_breakpoint_results.json")["concurrent_demo"]
    assert table["vram_during_pause_gb"]["djinn"] == found["vram_during_pause_gb"]
    assert table["vram_released"]["djinn"] == found["vram_released"]
    assert found["paused_sessions_bitwise_equal"]
    return found


def test_paused_sessions_leave_by_idleness_without_an_order(inside: Inside) -> None:
    found = demo(inside)
    assert (found["kv_bytes_resident_during_pause"], found["vram_released"]) == (0, True)
    assert found["books_of_stops_at_stop_gb"] > found["books_of_stops_during_pause_gb"] == 0
    assert found["vram_at_stop_gb"] > found["vram_during_pause_gb"] > found["vram_under_nap_gb"]
    assert found["requires_full_gpu_for_pause"] is False
    assert found["pause_duration_seconds"] >= 0.05
    assert len(found["resume_restore_times_ms"]) == found["paused_sessions"] == 2
    assert len(found["vram_samples_gb"]) == len(found["vram_samples_seconds"])


def test_sessions_that_leave_while_others_are_stopped_are_seen(inside: Inside, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine so slow that the first is gone before the last stands: the counter has never seen all of them."""
    stop_one = pause.stopped_at

    def slowly(engine: Any, *asked: Any) -> Any:
        session = stop_one(engine, *asked)
        inside.begin_idleness()
        while session.describe().residency == "resident":
            time.sleep(0.01)
        return session

    monkeypatch.setattr(pause, "stopped_at", slowly)
    found = demo(inside)
    assert found["paused_sessions_gone_at_stop"] == found["paused_sessions"]
    assert (found["vram_released"], found["vram_per_paused_session_mb"]) == (None, None)
    assert found["kv_bytes_resident_during_pause"] == 0


def test_an_engine_that_releases_nothing_is_seen_to(inside: Inside, monkeypatch: pytest.MonkeyPatch) -> None:
    """The planted fault: idle sessions stay. Ordering them away made this field 0 whatever the engine did."""
    monkeypatch.setattr(Eviction, "_let_go", lambda self, session, why, seconds: None)
    monkeypatch.setattr(pause, "RELEASE_SECONDS", 0.2)
    found = demo(inside)
    assert found["vram_released"] is False
    assert found["session_bytes_on_device"] > found["kv_bytes_resident_during_pause"] > 0, "more than keys and values"


FULL = (f"experiment.concurrent_demo.until_full_gb={CARD}", "experiment.concurrent_demo.until_full_sessions=24")


def filled(inside: Inside) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    """Djinn's fields, eager's, and the table, where both stop sessions in the same memory until it is full."""
    ran = inside.run("whitebox", *OTHER, *FULL, flags=("--skip-vllm",))
    assert ran.status == 0
    ours = ran.file("djinn_breakpoint_results.json")["concurrent_demo"]
    eager = ran.file("pytorch_eager_results.json")["metrics"]
    table = ran.file("comparative_results.json")["summary_table"]
    cells = table["sessions_until_full"]
    assert (cells["djinn"], cells["pytorch_eager"]) == (ours["sessions_until_full"], eager["sessions_until_full"])
    return ours, eager, table


def test_sessions_are_stopped_until_an_imposed_memory_is_full(inside: Inside) -> None:
    """Eager has as many as its tensors fit; ours leave for the disk, so that all that were asked for stand."""
    ours, eager, table = filled(inside)
    assert ours["sessions_until_full_limit_gb"] == eager["sessions_until_full_limit_gb"] == pytest.approx(CARD)
    assert (ours["sessions_until_full"], ours["sessions_until_full_reached"]) == (24, False)
    assert 0 < ours["sessions_until_full_on_device"] < 24
    assert ours["sessions_until_full_bitwise_equal"]
    assert table["sessions_until_full_reached"]["pytorch_eager"] is eager["sessions_until_full_reached"]


def test_memory_that_is_not_given_back_is_full_early(inside: Inside, monkeypatch: pytest.MonkeyPatch) -> None:
    """The planted fault: no session leaves for another."""
    monkeypatch.setattr(Eviction, "_send_away", lambda *asked: False)
    monkeypatch.setattr(pause, "RELEASE_SECONDS", 0.2)
    ours, _, table = filled(inside)
    assert ours["sessions_until_full"] < 24
    assert table["sessions_until_full_reached"]["djinn"] is True
    assert ours["sessions_until_full_refusal"]
    assert ours["sessions_until_full_bitwise_equal"]


def test_a_session_that_finds_no_memory_to_go_on_is_told_and_not_judged() -> None:
    class InFullMemory:
        def clear(self) -> None: ...

        def resume(self) -> None:
            raise SlabFull("all pages are taken")

    session: Any = InFullMemory()
    found = pause._is_alike([session], ((1, 2), "digest"))
    assert isinstance(found, Unmeasured)
    assert "all pages are taken" in found.reason


def test_eager_holds_as_many_stops_as_its_tensors_fit(inside: Inside) -> None:
    with inside.baseline("eager") as near:
        eager, prompts = near._eager, prompts_of(20, 9)
        eager.stand([prompts[0]], 2)
        size, each = weights.size_of(eager.model), eager.held()
        for count in (0, 1, 5):
            found = eager.fill(list(prompts), 2, size + count * each + each // 2)
            assert found["standing"] == count
            assert str(size + (count + 1) * each) in found["refusal"]
        assert eager.fill(list(prompts), 2, size + 9 * each) == {"standing": 9, "refusal": None}
        assert eager.standing == []


def results(inside: Inside, *settings: str) -> Any:
    return inside.run("whitebox", *settings, flags=OURS_ALONE).file("djinn_breakpoint_results.json")


def test_what_is_preallocated_is_read_off_the_slab(inside: Inside) -> None:
    """The figure is the slab's before the run does anything."""
    desk = inside.desk()
    desk.open("earlier")
    desk.run(tuple(range(1, 20)), 2, "earlier")
    there = sum(slab.statistics().bytes_allocated for slab in desk.engine.slabs)
    assert results(inside, *NOTHING)["memory_breakdown"]["vmu_slab_preallocated_gb"] == there / GIB > 0


def test_a_checkpoint_is_split_into_what_is_waited_for_and_what_is_copied(inside: Inside) -> None:
    """The stop's hidden state is on the device as well, and no part of the keys and values there."""
    found = results(inside, *TRIALS)
    of_a_session = found["memory_breakdown"]["kv_cache_per_session_gb"] * GIB
    for entry in found["token_accuracy"]["entries"]:
        assert entry["kv_bytes_resident_during_pause"] == of_a_session
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

        return Swapped(session=None, transfer=transfer)

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
        absence(Asked(None), engine)
