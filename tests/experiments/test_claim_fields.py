"""The fields that claims read: found in the result files of runs, or missing with the reason."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from djinn_jupyter.experiments.claims.results import ARCHITECTURES, FieldSource, NotMeasured, Results


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
