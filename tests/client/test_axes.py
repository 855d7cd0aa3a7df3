"""An axis of sweeps is one declaration. Here `neuron` is declared as the tokens of a line, each at all its positions: a
name of its own would be one of the wire's."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import djinn_jupyter as dj
from djinn_jupyter.api.engine import RemoteEngine
from djinn_jupyter.errors import UsageError
from djinn_jupyter.methods.sweep.engine import places

GIVEN: dict[str, Any] = {"clean": (9, 8, 9, 21, 22), "corrupted": (5, 8, 5, 21, 22), "metric": "logit(17) - logit(42)"}
PLACES = ([0, 2], [1], [3], [4])  # where each token of the corrupted line stands


@pytest.fixture(autouse=True)
def _declared(monkeypatch: pytest.MonkeyPatch) -> None:
    tokens = places.DeclaredAxis(
        part="row",
        places=lambda of: [*dict.fromkeys(of.line.texts[row] for row in of.rows)],
        elements=lambda of, text: tuple(row for row in of.rows if of.line.texts[row] == text),
    )
    monkeypatch.setitem(places.AXES, "neuron", tokens)


def test_a_declared_axis_is_swept(engine: RemoteEngine) -> None:
    grid = dj.sweep(engine, site="resid_post", over="layer,neuron", mode="exact", **GIVEN)
    assert grid.along("neuron") == (" w5", " w8", " w21", " w22")
    for at, rows in enumerate(PLACES):
        together = _all_at_once(engine, rows)
        assert (grid.values[1, at], grid.unedited) == (together.values[0], together.unedited)


def test_gradients_estimate_it(engine: RemoteEngine) -> None:
    found = dj.attribute(engine, site="z.1", over="head,neuron", **GIVEN)
    each = dj.attribute(engine, site="z.1", over="position,head", **GIVEN).values
    assert np.array_equal(found.values.T, [each[rows].sum(axis=0) for rows in PLACES])
    assert found.values.any()


def test_pairs_of_its_cells_are_edited_together_and_what_it_cannot_is_refused(
    engine: RemoteEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    grid = dj.sweep(engine, site="resid_post.1", over="neuron", in_pairs=True, mode="exact", **GIVEN)
    assert grid.over == ("neuron", "other_neuron")
    assert grid.values[0, 3] == _all_at_once(engine, [0, 2, 4]).values[0]
    for fields, said in [
        ({"over": "layer,neuron,position"}, "A site has neurons or positions; sweep over one of them."),
        ({"over": "layer,neuron", "window": {"neuron": 2}}, "A window is of layers or positions that the sweep goes"),
    ]:
        with pytest.raises(UsageError, match=said):
            dj.sweep(engine, site="resid_post", **GIVEN, **fields)
    halves = places.DeclaredAxis(part="coef", places=lambda of: (0.5, 1.0))
    monkeypatch.setitem(places.AXES, "neuron", halves)
    with pytest.raises(UsageError, match="Gradients do not estimate what a cell of the axis neuron changes"):
        dj.attribute(engine, site="resid_post.1", over="neuron", **GIVEN)


def _all_at_once(engine: RemoteEngine, rows: list[int]) -> dj.Grid:
    """Return a sweep whose first cell patches these positions together."""
    over: dict[str, Any] = {"over": "position", "positions": rows, "window": len(rows)}
    return dj.sweep(engine, site="resid_post.1", mode="exact", **over, **GIVEN)
