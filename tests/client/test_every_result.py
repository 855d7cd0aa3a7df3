"""Every result carries its recipe: it is kept, comes back, and is computed again from the recipe alone, bit for bit."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest

import djinn_jupyter as dj
from djinn_jupyter.client.doses import DoseRows
from djinn_jupyter.client.engine import RemoteEngine
from djinn_jupyter.client.frames import Listing
from djinn_jupyter.client.history import StopHistory
from djinn_jupyter.client.memory_trace import MemoryTrace
from djinn_jupyter.client.reproducing import kinds
from djinn_jupyter.client.result import Result
from djinn_jupyter.client.rules import SteeringRules
from djinn_jupyter.client.tree import Branches
from djinn_jupyter.client.watched import Watched
from djinn_jupyter.methods.datasets.api.activations import Values
from djinn_jupyter.methods.graphs.api.graphs import PrunedGraph
from djinn_jupyter.methods.sweep.api.pair_statistics import PairStatistics
from tests import saes, transcoders
from tests.client import tables

OF_OTHERS: Final = {
    PairStatistics: "computed from a grid, which has the recipe",
    PrunedGraph: "a part of an attribution graph, which has it",
    Values: "a site of a collection, which has it",
    DoseRows: "rows of a batch, which are sessions as they are now",
    dj.Activations: "a folder, which has the recipe",
    MemoryTrace: "times and bytes of one moment",
    SteeringRules: "rules as they are now",
    StopHistory: "stops as they are now",
    Branches: "likewise",
    Listing: "descriptions of what there is now",
}
RESULTS: Final = {kind: made for kind, made in tables.TABLES.items() if kind not in OF_OTHERS}
ENDINGS: Final = {kind: ending for ending, kind in kinds().items()}
ADDED: Final[dict[type, Callable[[RemoteEngine, Path], Any]]] = {
    dj.Splice: lambda engine, folder: engine.add_module(
        "sae", saes.saved(folder / "same", saes.drawn(32)), at="resid_post.1"
    ),
    dj.AttributionGraph: lambda engine, folder: engine.add_transcoders(
        "tc",
        transcoders.set_saved(
            folder / "same", {n: transcoders.drawn(32, seed=n) for n in range(engine.description.layers)}
        ),
        "mlp_in",
    ),
}


def kinds_of(base: type) -> set[type]:
    """Return the classes below a class that are no base of others."""
    below = base.__subclasses__()
    return {base} if not below else {one for kind in below for one in kinds_of(kind)}


def test_no_table_is_forgotten() -> None:
    assert {*tables.kinds_with_columns()} == set(RESULTS) | set(OF_OTHERS)
    ours = {kind for kind in kinds_of(Result) if kind.__module__.startswith("djinn_jupyter.")}
    assert ours | {dj.Grid} == set(RESULTS) == {*kinds().values()} - {dj.Activations}
    assert len(set(ENDINGS.values())) == len(ENDINGS)


@pytest.mark.parametrize("kind", RESULTS, ids=lambda kind: kind.__name__)
def test_a_result_is_kept_with_its_recipe_and_computed_again(engine: RemoteEngine, tmp_path: Path, kind: Any) -> None:
    result = RESULTS[kind](engine, tmp_path)
    close_all(engine)
    file = result.save(tmp_path / f"kept{ENDINGS[kind]}")
    read = kind.read(file)
    values = result.compared_values
    assert read.compared_values.tobytes() == values.tobytes()
    assert (read.columns().keys(), repr(read)) == (result.columns().keys(), repr(result))
    assert read.recipe == result.recipe
    assert str(engine.description.name) in str(result.recipe)
    added = ADDED.get(kind, lambda engine, folder: None)(engine, tmp_path)
    try:
        again = dj.reproduce(engine, file)
    finally:
        if added is not None:
            engine.remove_module("sae" if kind is dj.Splice else "tc")
    assert (again.same, again.different, again.origin, again.notes) == (True, 0, (), ())
    assert again.again is not None
    assert repr(again).count("\n") == 0
    assert repr(again).startswith(f"The same bits: {values.size:,} values of ")
    assert engine.sessions() == ()


@pytest.mark.parametrize("kind", [kind for kind in RESULTS if kind is not dj.Grid], ids=lambda kind: kind.__name__)
def test_a_number_that_is_another_is_found_with_its_place(engine: RemoteEngine, tmp_path: Path, kind: Any) -> None:
    result = RESULTS[kind](engine, tmp_path)
    close_all(engine)
    values = result.compared_values.copy()
    at = tuple(int(one[0]) for one in np.nonzero(np.isfinite(values)))
    values[at] += 1
    result.values = [values] if kind is Watched else values
    added = ADDED.get(kind, lambda engine, folder: None)(engine, tmp_path)
    try:
        again = dj.reproduce(engine, result)
    finally:
        if added is not None:
            engine.remove_module("sae" if kind is dj.Splice else "tc")
    assert (again.same, again.different, again.place) == (False, 1, result.place_of(at))
    assert repr(again).startswith(f"Other bits: 1 of {values.size:,} values differ, by up to 1")


def close_all(engine: RemoteEngine) -> None:
    for session in engine.sessions():
        engine.session(session.name).close()
