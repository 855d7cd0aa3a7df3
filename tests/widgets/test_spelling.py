"""Numbers and tokens as they are written, and how large notebooks become."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from nbformat.v4 import new_code_cell, new_notebook, new_output, writes

from djinn_jupyter.widgets import spelling, views
from djinn_jupyter.widgets.view import View
from tests.widgets import cards, samples
from tests.widgets.compared import compared
from tests.widgets.pooled import pooled

NUMBERS = json.loads((Path(__file__).parents[2] / "labextension" / "test" / "numbers.json").read_text())
"""The sidebar's test reads them too."""


def test_numbers_are_short_and_claim_no_certainty() -> None:
    for value, text in [*NUMBERS["figures"], (float("inf"), "inf"), (None, "not measured")]:
        assert spelling.figure(value) == text
    for probability, text in NUMBERS["shares"]:
        assert spelling.percent(probability) == text
    assert spelling.nats(-1e-9) == spelling.nats(3e-8) == "0.000 nats"
    assert spelling.nats(1.23449) == "1.234 nats"
    for count, text in [
        (None, "not measured"),
        (12, "12 B"),
        (1536, "1.50 KiB"),
        (2**31, "2.00 GiB"),
        (999 * 2**30, "999 GiB"),
        (1000 * 2**30, "0.977 TiB"),
        (9 * 2**40, "9.00 TiB"),
    ]:
        assert spelling.amount(count) == text


@given(st.floats(0, 1))
def test_a_bar_is_drawn_from_the_figure_that_is_written(probability: float) -> None:
    """Two probabilities that read the same are drawn the same."""
    written = spelling.percent(probability)
    if written.endswith("%") and written[0].isdigit() and written != "0 %":
        assert spelling.share(float(written.removesuffix(" %")) / 100) == spelling.share(probability)


def test_tokens_spans_and_columns_are_spelled() -> None:
    for text, shown in [
        (" Paris", "\u00b7Paris"),
        ("\n", "\u21b5"),
        ("a b", "a b"),
        ("  ", "\u00b7\u00b7"),
        ("\x07", "\ufffd"),
        ("a\r", "a\\r"),
    ]:
        assert spelling.marked(text) == shown
    assert spelling.marked("", 17) == "#17"
    for numbers, text in [((), ""), ((3,), "3"), ((0, 1, 2), "0-2"), ((0, 2, 3, 4, 9), "0, 2-4, 9")]:
        assert spelling.spans(numbers) == text
    assert spelling.columns([["a", "bb", ""], ["ccc", "d", ""]], ["x", "y", "z"]) == "x    y   z\na    bb\nccc  d"


POSITIONS, WIDTH, HEADS, LAYERS = 512, 4096, 32, 48
NOTEBOOKS = sorted((Path(__file__).parents[2] / "notebooks").glob("*.ipynb"))
TEXTS = tuple(f" word{i}" for i in range(POSITIONS))


def large() -> list[View]:
    """Ten views as a model of 48 layers, 32 heads and 4,096 dimensions gives them for a prompt of 512 tokens."""
    wide = samples.values(POSITIONS, WIDTH)
    stop = samples.paused("resid_post.7", layer=8, texts=TEXTS, layers=LAYERS, norms=(1.0,) * POSITIONS)
    weights = np.tril(np.random.default_rng(1).random((POSITIONS, POSITIONS))).astype(np.float32)
    pattern = np.repeat((weights / weights.sum(-1, keepdims=True))[:, None], HEADS, axis=1)
    lens = {
        f"resid_post.{i}": samples.lens_rows(tuple(range(POSITIONS)), TEXTS, 1, (" Paris", " <b>"))
        for i in range(LAYERS)
    }
    shared = range(POSITIONS - 12, POSITIONS)
    pair = (wide[-12:], wide[-12:] * np.float32(1.01))
    long_line = views.DiffSide(
        name="paris",
        state="paused",
        tokens=range(POSITIONS),
        texts=TEXTS,
        prompt_tokens=POSITIONS,
        prompt_text="",
        new_text="",
    )
    return [
        views.stop_view(
            stop,
            pooled=pooled(wide, alone=tuple(stop.positions[-10:])),
            lens=samples.lens_rows(tuple(stop.positions[-10:]), TEXTS),
        ),
        views.snapshot_view(cards.look("mlp_out.2", wide)),
        views.snapshot_view(cards.look("z.2", wide.reshape(POSITIONS, HEADS, -1), "T H D")),
        views.snapshot_view(cards.look("pattern.2", pattern, "T H K")),
        views.snapshot_view(cards.look("pattern.2[3]", pattern[:, 3:4], "T H K")),
        views.lens_grid_view(lens),
        views.lens_view("resid_post.7", samples.lens_rows(tuple(range(64)), TEXTS)),
        views.diff_view(long_line, cards.line("rome", seed=2), compared=compared(wide, wide * np.float32(1.01))),
        views.diff_view(
            long_line, long_line, positions=shared, layers={f"resid_post.{i}": pair for i in range(LAYERS)}
        ),
        views.watch_view(samples.watch(), [wide[:, :64]] * 4, [range(POSITIONS)] * 4),
    ]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_the_notebooks_of_the_package_are_small_too(path: Path) -> None:
    views_in_it = path.read_text().count("text/html")
    assert 0 < path.stat().st_size < 20_000 + 25_000 * views_in_it


def test_a_notebook_of_twenty_views_of_a_large_model_stays_under_two_megabytes() -> None:
    outputs = [new_output("display_data", data=view._repr_mimebundle_()) for view in large() * 2]
    notebook = new_notebook(cells=[new_code_cell("%djinn_inspect", outputs=[output]) for output in outputs])
    assert len(outputs) == 20
    assert len(writes(notebook)) < 2_000_000
    assert max(len(json.dumps(output)) for output in outputs) < 200_000
