"""No transfer is faster than the link that plain copies measure in the same run; else something was not copied."""

from __future__ import annotations

from typing import Any

import pytest

from djinn_evaluation.baselines import copies as plain
from djinn_evaluation.link import TOLERANCE, Link, TimedCopy, Way, of_transfer
from djinn_evaluation.timing import resume_latency
from djinn_jupyter.engine.session.residence import Swap
from djinn_jupyter.units import GIB
from djinn_jupyter.wire.nouns import Transfer
from tests.faults.inside import OURS_ALONE, Inside
from tests.faults.test_keys import PRESSED, TRIALS

LINK = Link(copies={"in": [(GIB, 1.0), (GIB, 0.5)], "out": [(GIB, 1.0)]})
QUEUED = Transfer(direction="out", tier="host", bytes_moved=GIB, seconds=9.0, cause="asked", copy_seconds=2.0)


def copy(way: Way, nbytes: float, seconds: float) -> TimedCopy:
    return TimedCopy(what="It", way=way, nbytes=int(nbytes), seconds=seconds)


@pytest.mark.parametrize(
    ("found", "failures"),
    [
        (copy("in", 2 * GIB, 1.0), 0),
        (copy("in", 2 * GIB * TOLERANCE * 1.01, 1.0), 1),
        (copy("out", 2 * GIB, 1.0), 1),
        (copy("out", 4096, 0.0), 1),
        (copy("out", 0, 0.0), 0),
    ],
    ids=["as fast", "faster", "faster than that way", "in no time", "nothing"],
)
def test_a_copy_is_at_most_as_fast_as_the_fastest_plain_one_of_its_way(found: TimedCopy, failures: int) -> None:
    assert len(LINK.failures([found, copy("in", 8, 1.0)])) == failures


def test_a_file_names_the_link_and_the_fastest_transfer() -> None:
    fields = LINK.fields([copy("in", GIB, 1.0), copy("in", GIB, 4.0)])
    assert fields["in"] == {"link_gb_per_s": 2.0, "transfers": 2, "fastest_transfer_gb_per_s": 1.0}
    assert fields["out"]["transfers"] == 0


def test_a_move_is_held_against_the_link_by_its_copies_alone() -> None:
    (found,) = of_transfer("It", QUEUED)
    assert (found.way, found.rate) == ("out", GIB / 2)


def test_plain_copies_really_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plain, "SECONDS", 0.0)
    monkeypatch.setattr(plain, "SIZES", (1 << 12, 1 << 16))
    seen: list[tuple[Any, bool]] = []
    timed = plain.seconds_of

    def looked_at(source: Any, target: Any, way: Any) -> float:
        target.zero_()
        seconds = timed(source, target, way)
        seen.append((way, bool((target == source).all())))
        return seconds

    monkeypatch.setattr(plain, "seconds_of", looked_at)
    found = plain.CopiedLink().measure("cpu")["copies"]
    assert set(seen) == {(way, True) for way in plain.WAYS}
    assert {size for size, _ in found["in"]} == {*plain.SIZES}
    assert all(seconds > 0 for way in found.values() for _, seconds in way)


@pytest.fixture(scope="module")
def inside(tmp_path_factory: pytest.TempPathFactory) -> Inside:
    return Inside(tmp_path_factory.mktemp("inside"))


RUNS = {
    "whitebox": ("djinn_breakpoint_results.json", TRIALS, OURS_ALONE),
    "pressure": ("memory_pressure_results.json", PRESSED, ()),
    "checkpoint-cost": ("checkpoint_cost_results.json", ("repeat=1",), ()),
    "resume-latency": ("djinn_resume_latency.json", ("repeat=1",), ("--skip-recompute", "--skip-offload")),
}


@pytest.mark.parametrize("name", RUNS)
def test_an_experiment_whose_copies_take_no_time_fails(
    inside: Inside, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """The planted fault: the clock of a copy begins when it is over."""
    file, settings, flags = RUNS[name]
    settle, timed = Swap.settle, resume_latency.timed
    monkeypatch.setattr(Swap, "settle", lambda swap, batch, size, seconds: settle(swap, batch, size, 0.0))
    monkeypatch.setattr(resume_latency, "timed", lambda work: (timed(work)[0], 1e-9))
    ran = inside.run(name, *settings, flags=flags)
    assert ran.status == 1
    assert "faster than the link" in ran.report
    link = ran.file(file).get("link") or ran.file(file)["metadata"]["link"]
    assert link["in"]["link_gb_per_s"] > 0
