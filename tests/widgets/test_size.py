"""Views of a large model stay small in the file."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from nbformat.v4 import new_code_cell, new_notebook, new_output, writes

from djinn_jupyter.widgets import views
from djinn_jupyter.widgets.view import View
from tests.widgets import cards, samples
from tests.widgets.compared import compared
from tests.widgets.pooled import pooled

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
