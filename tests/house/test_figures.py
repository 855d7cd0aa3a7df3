"""A time, a speed or a ratio in a document is one that a benchmark wrote, and the document says into which file."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
DOCUMENTS = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").glob("*.md"))]
# What is no measurement: a bar, a rule, a limit.
_BOUND = r"(?<!under )(?<!below )(?<!at most )(?<!at least )(?<!bar is )"
_FIGURE = re.compile(
    rf"{_BOUND}\b(?P<number>\d+(?:\.\d+)?)(?: (?:ms|us|GB/s|MB/s|times as)\b|(?<=\.\d\d) (?:of|times)\b)"
)
_FENCED = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
_FILE = re.compile(r"benchmarks/results/(\w+)\.json")


def figures_of(text: str) -> Iterator[tuple[str, set[str]]]:
    """Each figure of a document, with the results that its paragraph names."""
    for paragraph in _FENCED.sub("", text).split("\n\n"):
        for found in _FIGURE.finditer(paragraph.replace("\n", " ")):
            yield found["number"], set(_FILE.findall(paragraph))


def readings(name: str) -> Iterator[float]:
    """Every value in a file of results."""
    path = ROOT / "benchmarks" / "results" / f"{name}.json"
    if path.exists():
        for figure in json.loads(path.read_text())["figures"]:
            yield from _medians([figure["value"], *figure["sides"].values()])


def _medians(spreads: list[dict[str, Any] | None]) -> Iterator[float]:
    return (spread["median"] for spread in spreads if spread is not None)


def unfounded(text: str) -> list[str]:
    return [
        number
        for number, files in figures_of(text)
        if not any(f"{value:.{_decimals(number)}f}" == number for name in files for value in readings(name))
    ]


def _decimals(number: str) -> int:
    return len(number.partition(".")[2])


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_a_figure_is_in_the_results_that_its_paragraph_names(document: Path) -> None:
    assert unfounded(document.read_text()) == []


def test_what_came_out_is_in_the_results() -> None:
    """The table of benchmarks beside it has bars, which are no measurements."""
    _, _, told = (ROOT / "benchmarks" / "README.md").read_text().partition("## What came out\n")
    assert unfounded(told.partition("\n## ")[0]) == []
    assert len(list(figures_of(told))) > 10


def test_a_figure_of_no_file_is_found() -> None:
    assert unfounded("A stop takes 12 ms.") == ["12"]
    assert unfounded("A stop takes 12.7 ms (`benchmarks/results/no_such.json`).") == ["12.7"]
    assert unfounded("It is 0.52 of a copy (`benchmarks/results/streaming.json`).") == ["0.52"]
    assert unfounded("It is 0.74 of that (`benchmarks/results/streaming.json`), at most 30 ms.") == []
