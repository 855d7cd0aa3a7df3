"""The run of the small profile under evaluation/results: its answers are those of its files, by the present rules."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from djinn_evaluation.claims.judging import Results, answers
from djinn_evaluation.claims.table import CLAIMS

FOLDER = Path(__file__).parents[2] / "evaluation" / "results"
SMALL = FOLDER / "small"


@pytest.fixture(scope="module")
def committed() -> Any:
    return json.loads((SMALL / "claims.json").read_text())


def test_the_answers_are_those_of_the_files(committed: Any) -> None:
    judged = json.loads(json.dumps(answers(Results(folder=SMALL, code=committed.get("code")), CLAIMS)))
    for told, found in zip(committed["claims"], judged["claims"], strict=True):
        assert told == found, told["claim"]
    assert committed["summary"] == judged["summary"]


def test_what_is_refuted_says_why_and_what_is_undecided_what_it_takes(committed: Any) -> None:
    for claim in committed["claims"]:
        assert claim["verdict"] == "holds" or claim["reason"], claim["claim"]
        assert claim["verdict"] != "undecided" or claim["needs"] or "there is no run" in claim["reason"], claim["claim"]
        assert claim["verdict"] != "refuted" or claim["repetitions"] != 1, claim["claim"]


def test_the_page_counts_as_the_file_does(committed: Any) -> None:
    page = " ".join((FOLDER / "README.md").read_text().split())
    told = re.search(r"(\d+) hold, (\d+) hold at this size, (\d+) are refuted, (\d+) are undecided", page)
    assert told is not None
    assert tuple(map(int, told.groups())) == tuple(committed["summary"].values())
