from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from djinn_jupyter.widgets import spelling

NUMBERS = json.loads((Path(__file__).parents[2] / "labextension" / "test" / "numbers.json").read_text())
"""The sidebar's test reads them too."""


@pytest.mark.parametrize(("value", "text"), [*NUMBERS["figures"], (float("inf"), "inf"), (None, "not measured")])
def test_three_significant_digits(value: float | None, text: str) -> None:
    assert spelling.figure(value) == text


@pytest.mark.parametrize(("probability", "text"), NUMBERS["shares"])
def test_percent_never_claims_certainty(probability: float, text: str) -> None:
    assert spelling.percent(probability) == text


@given(st.floats(0, 1))
def test_a_bar_is_drawn_from_the_figure_that_is_written(probability: float) -> None:
    """Two probabilities that read the same are drawn the same."""
    written = spelling.percent(probability)
    if written.endswith("%") and written[0].isdigit() and written != "0 %":
        assert spelling.share(float(written.removesuffix(" %")) / 100) == spelling.share(probability)


def test_noise_below_the_digits_of_a_divergence_reads_as_zero() -> None:
    assert spelling.nats(-1e-9) == spelling.nats(3e-8) == "0.000 nats"
    assert spelling.nats(1.23449) == "1.234 nats"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (" Paris", "\u00b7Paris"),
        ("\n", "\u21b5"),
        ("a b", "a b"),
        ("  ", "\u00b7\u00b7"),
        ("\x07", "\ufffd"),
        ("a\r", "a\\r"),
    ],
)
def test_white_space_of_a_token_is_visible(text: str, shown: str) -> None:
    assert spelling.marked(text) == shown


def test_a_token_without_text_is_named_by_its_number() -> None:
    assert spelling.marked("", 17) == "#17"


@pytest.mark.parametrize(
    ("numbers", "text"), [((), ""), ((3,), "3"), ((0, 1, 2), "0-2"), ((0, 2, 3, 4, 9), "0, 2-4, 9")]
)
def test_spans(numbers: tuple[int, ...], text: str) -> None:
    assert spelling.spans(numbers) == text


def test_columns_are_aligned_and_have_no_trailing_blanks() -> None:
    assert spelling.columns([["a", "bb", ""], ["ccc", "d", ""]], ["x", "y", "z"]) == "x    y   z\na    bb\nccc  d"


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (None, "not measured"),
        (12, "12 B"),
        (1536, "1.50 KiB"),
        (2**31, "2.00 GiB"),
        (999 * 2**30, "999 GiB"),
        (1000 * 2**30, "0.977 TiB"),
        (9 * 2**40, "9.00 TiB"),
    ],
)
def test_bytes(count: int | None, text: str) -> None:
    assert spelling.amount(count) == text
