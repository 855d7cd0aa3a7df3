"""The fields that claims read: found in the result files of runs, or missing with the reason."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from djinn_evaluation import pressure
from djinn_evaluation.claims.judging import ARCHITECTURES, FieldSource, NotMeasured, Results
from djinn_evaluation.claims.table import CLAIMS
from djinn_evaluation.course import Course
from djinn_jupyter.units import GIB
from tests.evaluation.test_claims import HOLDING, SPAWNED, evicted


def test_a_value_is_found_by_its_path_or_the_reason_is(tmp_path: Path) -> None:
    for run, entries in (("one", [{"ms": 1}, {"ms": 2}]), ("two", [{"ms": 3}])):
        (tmp_path / run).mkdir()
        fields = {"status": "error", "error": "It broke.", "found": {"entries": entries, "gpu": None}}
        told = {**fields, "reasons": {"found.gpu": "no GPU"}}
        (tmp_path / run / "found.json").write_text(json.dumps(told))
    results = Results(folder=tmp_path)
    assert results.value(FieldSource.of("one+two/found.json: found.entries[].ms")) == [1, 2, 3]
    assert results.value(FieldSource.of("one/found.json: status")) == "error"
    assert results.read("one/found.json: found.entries[].ms & two/found.json: status") == [1, 2, "error"]
    for spelled, why in (
        ("one/found.json: found.gpu", "one has not measured found.gpu: no GPU"),
        ("two/found.json: other.ms", "two has no other.ms: It broke."),
        ("three/found.json: status", "there is no run three with a found.json"),
    ):
        with pytest.raises(NotMeasured, match=why):
            results.value(FieldSource.of(spelled))


def test_every_architecture_that_a_claim_computes_with_ships() -> None:
    assert (ARCHITECTURES / "Llama-2-13b-hf.json").is_file()


@pytest.mark.parametrize(("number", "missed"), [(16, {"sessions_alive_max": 3}), (17, {"plateau_achieved": False})])
def test_a_run_of_pressure_that_missed_or_was_cut_short_decides_nothing(
    number: int, missed: dict[str, Any], tmp_path: Path
) -> None:
    """The file of either says `partial`. One that passed refutes by its own fields."""
    claim, results = next(one for one in CLAIMS if one.number == number), Results(folder=tmp_path, code=None)
    whole = {spelled.rpartition(" ")[2]: HOLDING[number][name][0] for name, spelled in claim.reads.items()}
    for name in ("pressure", "pressure_again"):
        (tmp_path / name).mkdir()
        course = Course(folder=tmp_path / name, log=logging.getLogger("test"))
        course.write(pressure.FILE, {**whole, "status": "success"})
    assert claim.judged(results).verdict in ("holds", "holds at this size")
    course.write(pressure.FILE, {**whole, **missed, "status": "success"})
    assert claim.judged(results).verdict == "refuted"
    course.write(pressure.FILE, {**whole, **missed, "status": "partial", "failures": ["It missed."]})
    assert claim.judged(results).reason == "pressure_again failed: It missed."
    sums: Any = SimpleNamespace(
        sessions=4, demand=11 * GIB, capacity=10 * GIB, per_session=2 * GIB, capacity_imposed=True
    )
    swaps: Any = SimpleNamespace(events=evicted(3.5, 3.9, back=False), latencies=list, first_out=3.5)
    so_far = {**pressure._so_far(sums, SPAWNED, swaps), "sessions_alive_max": 4}
    course.write_partial(pressure.FILE, pressure.FIELDS, so_far)
    assert claim.judged(results).verdict == "undecided"
