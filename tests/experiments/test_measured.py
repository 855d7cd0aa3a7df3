"""Figures of `whitebox` that could be read off another quantity than the one that names them."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import pytest

from djinn_jupyter.amounts import GIB
from djinn_jupyter.errors import DjinnError
from djinn_jupyter.experiments.absence import absence
from djinn_jupyter.experiments.whitebox import meanwhile
from djinn_jupyter.wire.nouns import Transfer
from tests.faults.inside import OURS_ALONE, Inside
from tests.faults.test_keys import NOTHING, OTHER, PRESSURE, TRIALS


@pytest.fixture(scope="module")
def inside(tmp_path_factory: pytest.TempPathFactory) -> Inside:
    return Inside(tmp_path_factory.mktemp("inside"))


def results(inside: Inside, *settings: str) -> Any:
    return inside.run("whitebox", *settings, flags=OURS_ALONE).file("djinn_breakpoint_results.json")


def test_the_pause_ends_where_the_resume_begins(inside: Inside, monkeypatch: pytest.MonkeyPatch) -> None:
    """The pause's duration excludes later work, such as sleep."""
    later = [0.0]

    def sleep(engine: Any) -> float:
        later[0] += 1000.0
        return 0.0

    monkeypatch.setattr(meanwhile, "_under_sleep", sleep)
    clock = SimpleNamespace(monotonic=lambda: time.monotonic() + later[0], sleep=time.sleep)
    monkeypatch.setattr(meanwhile, "time", clock)
    found = results(inside, *OTHER)["concurrent_demo"]
    assert 0.01 <= found["pause_duration_seconds"] < 500
    moments = found["vram_samples_seconds"]
    assert len(moments) == len(found["vram_samples_gb"])
    assert moments == sorted(moments)


def test_what_is_preallocated_is_read_off_the_slab(inside: Inside) -> None:
    """The figure is the slab's before the run does anything."""
    desk = inside.desk()
    desk.open("earlier")
    desk.run(tuple(range(1, 20)), 2, "earlier")
    there = sum(slab.statistics().bytes_allocated for slab in desk.engine.slabs)
    assert results(inside, *NOTHING)["memory_breakdown"]["vmu_slab_preallocated_gb"] == there / GIB > 0


def test_a_checkpoint_is_split_into_what_is_waited_for_and_what_is_copied(inside: Inside) -> None:
    for entry in results(inside, *TRIALS)["token_accuracy"]["entries"]:
        assert entry["checkpoint_time_ms"] > entry["checkpoint_copy_ms"] > 0
        assert entry["checkpoint_time_ms"] >= entry["checkpoint_dispatch_ms"] > 0


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
        return self.note("back") or True


def test_the_bystander_asks_behind_the_one_that_leaves() -> None:
    moved = Transfer(direction="out", tier="host", bytes_moved=7, seconds=0.5, cause="asked")
    engine: Any = Asked(moved)
    found = absence(engine, engine)
    assert engine.heard == ["SwapOut", "bystander", "left", "back"]
    assert (found.bytes_moved, found.copy_ms) == (7, 500.0)
    with pytest.raises(DjinnError, match="nothing moved"):
        absence(Asked(None), engine)  # type: ignore[arg-type]
