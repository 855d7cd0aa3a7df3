"""A sentence with a number that its run does not have holds at the run's size, and says which number that is."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from djinn_evaluation.claims.judging import NotMeasured, Results, StatedClaim
from djinn_evaluation.claims.table import CLAIMS, SIZES
from tests.evaluation.test_claims import HOLDING

sized = pytest.mark.parametrize("claim", [c for c in CLAIMS if c.sizes], ids=lambda c: f"claim-{c.number}")
# Numbers of a sentence that its run measures, that name something, or that its verdict compares with.
JUDGED: dict[int, str] = {
    1: "100.00 0.00 2",  # and GPT-2
    2: "2 13 10 20 7",
    3: "1",
    4: "0.39",
    5: "2.2 2.5",
    6: "0.0",
    7: "5 10",
    8: "2.2 5",
    9: "1 0.2 0.6",
    10: "10",  # our logits are the last position's alone
    11: "1 62.5 800 10",
    13: "100",
    14: "0",
    15: "27 50 1.3 92 80",
    16: "50 1 40",
    17: "77 79",
    18: "50 80 20",
    20: "0.1 7",
    21: "20 000 80 10",
    22: "22",
    24: "1 50",
    25: "2",
    26: "41",
    29: "1 024 2 048 100",
}
# What the fields of a run have, and the number that it is read as.
READ: dict[int, list[tuple[Any, float]]] = {
    1: [([7] * 512, 512), ([3, 6, 9, 3, 6, 9], 3), ([1, 1, 2, 2, 3, 3], 3)],
    2: [([10, 20, 30], 30), ([7] * 100, 100)],
    3: [([3, 6, 9], 9), ([[1, 512, 768], [1, 128, 768]], 128), ([[1, 512, 768], [1, 512, 128]], 128)],
    4: [(6, 6), (0.5, 0.5)],
    10: [(70102, 70102)],
    13: [(0.36, 0.36)],
    16: [([50, 12], 12), (4, 4)],
    17: [([79.6, 40.0], 40)],
    18: [([0, 2_000_000, 1_000_000], 1e6)],
    19: [([6, 2], 2)],
    20: [([0.007, 130.385], 70)],
    23: [([30_100, 3_000], 3)],
    24: [([8, 80], 80)],
    26: [([72.0, 16.4], 16.4), ([25.146, 25.146], 27), ([1.2107, 1.2107], 1.3)],
}


def judged(claim: StatedClaim, values: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return the verdict where the fields of the sizes have these values; None for one that is not there."""
    held = {spelled: HOLDING[claim.number][name] for name, spelled in claim.reads.items()}

    def read(self: Results, spelled: str) -> Any:
        found = {**held, **values}[spelled]
        if found is None:
            raise NotMeasured("it is not there")
        return found

    monkeypatch.setattr(Results, "read", read)
    monkeypatch.setattr(Results, "fault", lambda self, reads, refused: None)
    monkeypatch.setattr(Results, "reached_over_a_line", lambda self, reads: False)
    return claim.judged(Results(folder=Path()))


@sized
def test_what_holds_at_less_than_a_number_of_the_sentence_holds_at_this_size(
    claim: StatedClaim, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each size alone, at its number and below it; a field of the run that is not there is below it too."""
    sizes = {f"field {at}": replace(size, field=f"field {at}", of=float) for at, size in enumerate(claim.sizes)}
    plain = replace(claim, sizes=tuple(sizes.values()))
    reached = {field: size.number * (1 - size.near) for field, size in sizes.items()}
    assert judged(plain, reached, monkeypatch).verdict == "holds"
    for field, size in sizes.items():
        for less in (reached[field] * 0.99, None):
            found = judged(plain, {**reached, field: less}, monkeypatch)
            assert found.verdict == "holds at this size"
            assert found.reason.startswith(f"{size.what}: ")
            assert less is None or f"{size.number:g} in the sentence" in found.reason


def test_a_size_is_read_from_what_runs_write() -> None:
    assert READ.keys() == SIZES.keys() == {claim.number for claim in CLAIMS if claim.sizes}
    for number, readings in READ.items():
        assert len(readings) == len(SIZES[number])
        for size, (found, expected) in zip(SIZES[number], readings, strict=True):
            assert size.of(found) == pytest.approx(expected, rel=1e-3), (number, size.what)


@pytest.mark.parametrize("claim", CLAIMS, ids=lambda c: f"claim-{c.number}")
def test_each_number_of_a_sentence_is_a_size_or_is_judged(claim: StatedClaim) -> None:
    numbers = {float(found) for found in re.findall(r"\d+(?:\.\d+)?", claim.sentence)}
    sizes = {size.number for size in claim.sizes} | {size.number / 1e9 for size in claim.sizes}
    sizes |= {size.number / 1e6 for size in claim.sizes}
    assert numbers - sizes == {float(word) for word in JUDGED.get(claim.number, "").split()} - sizes, claim.sentence


def test_a_refuted_or_undecided_claim_keeps_its_verdict(monkeypatch: pytest.MonkeyPatch) -> None:
    claim = next(one for one in CLAIMS if one.number == 23)
    monkeypatch.setitem(HOLDING, 23, {**HOLDING[23], "equal": [True, False]})
    assert judged(claim, {SIZES[23][0].field or "": [3_000.0]}, monkeypatch).verdict == "refuted"
