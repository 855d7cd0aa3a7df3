"""Bytes are spelled by one module, `djinn_jupyter/units.py`: the same count is the same text wherever it is read."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from djinn_jupyter.units import parse_bytes, power_above, spell_bytes, spell_option, spell_rate

PACKAGE = Path(__file__).parents[2] / "djinn_jupyter"
EXAMPLES = PACKAGE.parent / "labextension" / "test" / "bytes.json"  # the sidebar's test reads them too
UNIT = re.compile(r"\s?([kKMGT]i?B|bytes/s)\b")
EVALUATION = PACKAGE.parent / "evaluation" / "djinn_evaluation"
ALLOWED = {
    # a number of the user's own file, repeated as it was written
    ("configuration/sections.py", "self.ring_gb"),
    ("configuration/sections.py", "self.limit_gb"),
}


def spelled_by_hand(source: str) -> Iterator[str]:
    """The values in formatted texts that are followed by a unit of bytes."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.JoinedStr):
            for value, after in zip(node.values, node.values[1:], strict=False):
                unit = isinstance(after, ast.Constant) and UNIT.match(str(after.value))
                if unit and isinstance(value, ast.FormattedValue):
                    yield ast.unparse(value.value)


def everywhere() -> set[tuple[str, str]]:
    """Return the spellings of both packages but for the benchmarks, whose output is a terminal's."""
    return {
        (path.relative_to(folder).as_posix(), value)
        for folder in (PACKAGE, EVALUATION)
        for path in sorted(folder.rglob("*.py"))
        if path.name != "units.py" and "benchmarks" not in path.parts and "replay" not in path.parts
        if re.search(rf"}}{UNIT.pattern}", source := path.read_text())
        for value in spelled_by_hand(source)
    }


def test_bytes_are_spelled_in_one_module() -> None:
    assert everywhere() == ALLOWED


def test_a_second_spelling_is_found() -> None:
    source = 'say(f"{n / 2**20:.1f} MiB of {all_of_it}GB at {speed:.0f} kB/s, {count} Bytes, {files} B")'
    assert list(spelled_by_hand(source)) == ["n / 2 ** 20", "all_of_it", "speed"]


@pytest.mark.parametrize(("count", "text"), json.loads(EXAMPLES.read_text()))
def test_bytes_have_three_digits_and_the_largest_unit(count: int, text: str) -> None:
    assert spell_bytes(count) == text


@given(st.integers(0, 2**50))
def test_an_option_that_was_proposed_allows_as_much_and_hardly_more(count: int) -> None:
    given_back = parse_bytes(spell_option(count))
    assert given_back is not None
    assert count <= given_back <= count * 1.002 + 1


def test_a_link_is_as_fast_as_its_vendor_says() -> None:
    assert spell_rate(12_400_000_000) == "12.4 GB/s"


@pytest.mark.parametrize(("value", "text"), [(0.00013, "0.001"), (0.0002, "0.001"), (1.0, "10"), (0.0, "0")])
def test_a_bound_is_the_power_of_ten_above(value: float, text: str) -> None:
    assert power_above(value) == text
