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
    rf"{_BOUND}\b(?P<number>\d+(?:\.\d+)?)"
    r"(?: (?:ms|us|GB/s|MB/s|times as)\b|(?:(?<=\.\d\d)|(?<=\.\d\d\d)) (?:of|times)\b)"
)
_CELL = re.compile(r"(?<=\| )\d+\.\d+(?= \|)")
_FENCED = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
_FILE = re.compile(r"evaluation/results/benchmarks/([\w/-]+)\.json")


def figures_of(text: str) -> Iterator[tuple[str, set[str]]]:
    """Each figure of a document, with the results that its paragraph names, or for a table the paragraph above it."""
    before = ""
    for paragraph in _FENCED.sub("", text).split("\n\n"):
        for found in _FIGURE.finditer(paragraph.replace("\n", " ")):
            yield found["number"], set(_FILE.findall(paragraph))
        if files := set(_FILE.findall(before)):
            yield from ((number, files) for number in _CELL.findall(paragraph))
        before = paragraph


def readings(name: str) -> Iterator[float]:
    """Every value in a file of results; in a file that no benchmark of ours wrote every number."""
    path = ROOT / "evaluation" / "results" / "benchmarks" / f"{name}.json"
    if path.exists():
        written = json.loads(path.read_text())
        if "figures" not in written:
            yield from _numbers(written)
        for figure in written.get("figures", ()):
            yield from _medians([figure["value"], *figure["sides"].values()])


def _numbers(value: Any) -> Iterator[float]:
    if isinstance(value, dict | list):
        for one in value.values() if isinstance(value, dict) else value:
            yield from _numbers(one)
    elif isinstance(value, float):
        yield value


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
    _, _, told = (ROOT / "evaluation" / "README.md").read_text().partition("## What came out\n")
    assert unfounded(told.partition("\n## ")[0]) == []
    assert len(list(figures_of(told))) > 10


def test_a_figure_of_no_file_is_found() -> None:
    assert unfounded("A stop takes 12 ms.") == ["12"]
    assert unfounded("A stop takes 12.7 ms (`evaluation/results/benchmarks/no_such.json`).") == ["12.7"]
    assert unfounded("It is 0.52 of a copy (`evaluation/results/benchmarks/streaming.json`).") == ["0.52"]
    assert unfounded("It is 0.74 of that (`evaluation/results/benchmarks/streaming.json`), at most 30 ms.") == []
    assert unfounded("It is 0.494 of that (`evaluation/results/benchmarks/batches.json`).") == ["0.494"]


def test_a_cell_of_a_table_is_sought_in_the_file_above_it() -> None:
    said = "On a card (`evaluation/results/benchmarks/nvidia-h100-80gb-hbm3/graphs_prototype.json`):\n\n"
    assert unfounded(f"{said}| two graphs a layer | 112.6 | 73.3 |") == []
    assert unfounded(f"{said}| two graphs a layer | 112.6 | 99.9 |") == ["99.9"]
